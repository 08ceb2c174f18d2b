"""The schemas of the kernel's resources. Those of a feature stand in its ``schema`` module."""
