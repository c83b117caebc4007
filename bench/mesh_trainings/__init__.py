"""Small trainings on a mesh of gloo ranks, healthy and with a bug of parallel training planted: `bench/mesh.py`.

`layouts` has the ways in which one small language model is laid out; `cases` the bugs, each with what is to be said of
it; `ranks` is one rank's program. They import the agent alone, as a user's script does.
"""
