"""Chat platforms and other targets: which there are, how texts and files are sent to them, and how messages come in."""
