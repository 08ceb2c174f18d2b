"""Where answers go: targets, the texts and files that are sent to them, and what their replies mean."""
