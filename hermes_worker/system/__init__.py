"""Things of one process: armed faults, garbage collection, plain files, folders that go with their process."""
