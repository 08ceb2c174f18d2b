"""Full-text search in transcripts."""
