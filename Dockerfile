# rl-supervisor beside a trainer, for containers without systemd.
#
#   docker build -t rl-supervisor .
#   docker build --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 -t rl-supervisor:cuda .
#   docker run --gpus all --shm-size 16g -v /etc/rl-supervisor:/etc/rl-supervisor:ro -v /data:/data \
#       --env-file /etc/rl-supervisor/my-run.env rl-supervisor /etc/rl-supervisor/my-run.toml
#
# Keys come in when the container is run; none is in the image. The trainer is not in it either: [setup] installs it, or
# it is in a volume. Give --stop-timeout 420: stopping a run takes its time. As process 1 the program
# starts its daemon again after a crash and reaps what a trainer leaves behind.
ARG BASE=python:3.11-slim
FROM ${BASE}

RUN if ! python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
        apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi
# git and curl are what [setup] commands usually want.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl git procps \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml constraints.txt README.md LICENSE /usr/src/rl-supervisor/
COPY supervisor /usr/src/rl-supervisor/supervisor
COPY units /usr/src/rl-supervisor/units
RUN python3 -m venv /opt/rl-supervisor \
    && /opt/rl-supervisor/bin/pip install --no-cache-dir -c /usr/src/rl-supervisor/constraints.txt /usr/src/rl-supervisor \
    && ln -s /opt/rl-supervisor/bin/rl-supervisor /opt/rl-supervisor/bin/rl-supervisorctl /usr/local/bin/

# Journal and evidence outlive the container when this is a volume.
VOLUME /var/lib/rl-supervisor
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/rl-supervisor/bin/rl-supervisor", "onstart"]
CMD ["/etc/rl-supervisor/run.toml"]
