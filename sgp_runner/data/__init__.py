"""Data sets, one module each, and the samplers that divide the samples among the workers."""
