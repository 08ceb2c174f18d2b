"""The load of ``benchmarks.compare`` on other systems, beside which a tree is measured."""
