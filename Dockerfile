# syntax=docker/dockerfile:1.7
# A pod's image: prime-rl at one commit with its environment, and rl-supervisor in its own.
#
#   docker build -t rl-pod .
#   docker build --build-arg PRIME_RL_REVISION=<40 digits> -t rl-pod .      # another prime-rl
#   docker build --build-arg TRAINER=none -t rl-supervisor .                # rl-supervisor alone: [setup] brings the trainer
#   docker run --gpus all --shm-size 16g --stop-timeout 420 -v /etc/rl-supervisor:/etc/rl-supervisor:ro -v /data:/data \
#       --env-file /etc/rl-supervisor/my-run.env rl-pod /etc/rl-supervisor/my-run.toml
#
# Keys come in when the container is run. None is in a layer: no ARG or ENV holds one, and .dockerignore lets through only
# the files that are named in it. docs/containers.md says how it is run on Vast.ai and RunPod, and what its exit codes mean.
# What changes rarely comes first, so that a change of the supervisor builds two small layers and nothing of the trainer.

# prime-rl, or none.
ARG TRAINER=prime-rl
# Pinned by tag. A tag may be moved: for an image that is the same in a year, append the digest that
# `docker buildx imagetools inspect NAME:TAG` prints, as NAME:TAG@sha256:...
ARG BASE=python:3.12-slim-bookworm
ARG CUDA_BASE=nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04
ARG CUDA13_BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04

# ---------------------------------------------------------------- the machine

# hadolint ignore=DL3006 # BASE has its tag
FROM ${BASE} AS base-none

# hadolint ignore=DL3006 # CUDA_BASE has its tag
FROM ${CUDA_BASE} AS base-prime-rl
# What prime-rl's own image has: Triton and vLLM compile kernels while the run lives, the rest is for NCCL and nixl.
# hadolint ignore=DL3008 # a distribution's archive keeps one version of a package: a pin would end the build at the next update
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential ibverbs-providers libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 librdmacm1 ninja-build \
        python3-dev

# hadolint ignore=DL3006 # one of the two above
FROM base-${TRAINER} AS base
# git and curl are what [setup] commands usually want; the health check looks for processes.
# hadolint ignore=DL3008 # as above
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update \
    && if ! python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv; \
    fi \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates curl git procps

# ---------------------------------------------------------------- rl-supervisor, in an environment of its own

FROM base AS supervisor
WORKDIR /usr/src/rl-supervisor
COPY pyproject.toml constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=image,target=/mnt/image \
    bash /mnt/image/supervisor.sh dependencies
COPY README.md LICENSE ./
COPY supervisor supervisor
COPY units units
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,source=image,target=/mnt/image \
    bash /mnt/image/supervisor.sh program

# ---------------------------------------------------------------- the trainer

FROM base AS trainer-none

# deep-gemm, of prime-rl's own set, is linked against CUDA 13, vLLM and torch against 12.
# hadolint ignore=DL3006 # CUDA13_BASE has its tag
FROM ${CUDA13_BASE} AS cuda13
RUN mkdir /cuda13 && find /usr/local -name 'libcudart.so.13*' -exec cp -d {} /cuda13/ \; \
    && find /usr/local -name 'libnvrtc*.so.13*' -exec cp -d {} /cuda13/ \; && test -e /cuda13/libcudart.so.13

FROM base AS trainer-prime-rl
COPY --link --from=cuda13 /cuda13/ /opt/cuda13/lib64/
RUN echo /opt/cuda13/lib64 >/etc/ld.so.conf.d/cuda13.conf && ldconfig
# prime-rl wants 0.11.1 or newer.
ARG UV_VERSION=0.12.24
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet "uv==${UV_VERSION}" && ln -s /opt/uv/bin/uv /usr/local/bin/
# One commit, never a branch or a tag: it would be another prime-rl at each build, and the cache would not know. This one is
# the newest whose flags, folders and log lines the supervisor was tried with.
ARG PRIME_RL_REVISION=559b44772e471d1538537b8805cc77f3824a5e64
ARG PRIME_RL_REPOSITORY=PrimeIntellect-ai/prime-rl
# Or a mirror of it; prime-rl's submodules come from there, too.
ARG GITHUB=https://github.com/
RUN --mount=type=bind,source=image,target=/mnt/image bash /mnt/image/prime-rl.sh checkout
# The words are those of prime-rl's own image. The lock decides every version.
ARG PRIME_RL_SYNC="--all-packages --extra flash-attn --extra flash-attn-3 --extra flash-attn-cute --extra disagg --extra gpt-oss --extra quack --group mamba-ssm"
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,source=image,target=/mnt/image \
    bash /mnt/image/prime-rl.sh sync

# ---------------------------------------------------------------- the pod

# hadolint ignore=DL3006 # one of the two above
FROM trainer-${TRAINER} AS pod
COPY --link --from=supervisor /opt/rl-supervisor /opt/rl-supervisor
# The commands' names in /usr/local/bin. PATH stays as it is: this environment's python is none of the job's business.
COPY --link --from=supervisor /opt/names/ /usr/local/bin/
COPY --link --from=supervisor /opt/share/ /usr/local/share/

ARG TRAINER
LABEL org.opencontainers.image.title="rl-supervisor" \
      org.opencontainers.image.description="Keeps a long-running RL job alive: rl-supervisor, and the trainer where it was built in" \
      org.opencontainers.image.licenses="Apache-2.0" \
      trainer="${TRAINER}"

# root, and so it stays: the job's open files are raised above the hard limit, the daemon is made the last one that a full
# memory ends, what other users' dead processes hold of the GPUs and of /dev/shm is freed, py-spy looks into processes.
# Providers give their containers root anyway. `docker run --user` works, without those.

# Journal and evidence outlive the container when this is a volume.
VOLUME /var/lib/rl-supervisor
STOPSIGNAL SIGTERM
# It says whether somebody looks after the run, not whether the run trains: a run that waits for the store, another pod or a
# person is well. It fails only after ten minutes without a daemon and without a job, so that what replaces a container for
# it (Swarm does, plain Docker and Kubernetes do not) ends no training.
HEALTHCHECK --interval=2m --timeout=30s --start-period=5m --retries=5 CMD ["rl-supervisor-health"]
# --restart, so that the daemon is started again under `docker run --init` as well, where it is not process 1.
ENTRYPOINT ["/opt/rl-supervisor/bin/rl-supervisor", "onstart", "--restart"]
CMD ["/etc/rl-supervisor/run.toml"]
