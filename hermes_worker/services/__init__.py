"""The one way a run comes into being, is answered, and is read, whoever asks."""
