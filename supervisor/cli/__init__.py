"""What people type: ``rl-supervisor`` on the pod, ``supervisorctl`` for runs that a daemon watches."""
