"""`rangewatch linkcheck`: does every rank, and every pair of ranks, communicate; is it right, and how fast is it?"""
