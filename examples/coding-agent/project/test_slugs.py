import unittest

from slugs import slug


class Slugs(unittest.TestCase):
    def test_words_are_joined(self) -> None:
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_signs_and_spaces_at_the_ends_are_left_out(self) -> None:
        self.assertEqual(slug("  What's new? "), "whats-new")
