"""Addresses for the titles of articles."""


def slug(title: str) -> str:
    return title.lower().replace(" ", "-")
