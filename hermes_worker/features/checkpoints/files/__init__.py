"""What the files of a workspace were before an agent changed them."""
