"""Chromium on the pages, without a test framework."""
