"""The work of jobs' runs on a worker: collecting their inputs, and keeping their outputs."""
