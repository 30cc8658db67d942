"""Values that are JSON.

records   the decoder of JSON objects
kernels   validation and the spans of members: numba kernels
rows      many objects at once into columns, by Arrow's parser
nodes     readers of each type, vectorised and one by one
"""
