"""A virtual pod: the real core against a simulated prime-rl job, with a virtual clock and a seed.

The parts, and what each may know:

- ``world``: the physics. Processes, GPUs, engine, disk, link, store, pods. No facts, no policy.
- ``faults``: what can go wrong. A fault changes the world and nothing else.
- ``sensing``: looks at the world and makes the observations; it never sees a fault.
- ``hands``: carries out what a policy asks for, in the world, with the durations of the real effects.
- ``policy``: what is judged: the core, or another policy behind the same interface.
- ``ledger``: the truth, for the account: where each second went, what each fault cost.
- ``run``: joins them and prints nothing; ``supervisor.cli.simulate`` is for people.

Another world is the market, for the fleet's core: ``virtual_fleet`` (pods, store, provider), ``market`` (what will
happen), ``market_world`` (it happens), ``market_policies`` and ``market_compare``.
"""
