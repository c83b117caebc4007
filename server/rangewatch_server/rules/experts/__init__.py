"""Mixtures of experts: what becomes of tokens at their routers."""
