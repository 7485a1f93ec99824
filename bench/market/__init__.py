"""A market that never was, for the fleet's controller: what will happen (``draw``), what happens (``world``), who
decides (``policies``), and one table (``compare``). The tests of the fleet use its pods, store and provider, too.
"""
