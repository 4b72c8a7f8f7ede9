"""Codecs: lossy encodings of vectors into messages of exactly the counted size."""
