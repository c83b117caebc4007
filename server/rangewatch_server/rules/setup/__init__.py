"""How the training is set up: its mode, its first loss and the shapes in it, and what becomes of a gradient and an
update on their way.
"""
