"""Codecs: lossy encodings of vectors, whose messages have as many bits as they count for."""
