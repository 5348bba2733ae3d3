# Not built by any test yet. On a CPU:
#   docker build -t nsgf . && docker run --rm -v "$PWD/runs:/nsgf/runs" nsgf
# On a card, with a base that has torch for it:
#   docker build -t nsgf --build-arg BASE=pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime .
#   docker run --rm --gpus all -v "$PWD/runs:/nsgf/runs" nsgf train --exp cifar10
ARG BASE=python:3.12-slim
FROM ${BASE}

# read where the base has no torch of its own; has CPU builds, which are a tenth of the size
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1

WORKDIR /opt/nsgf
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY nsgf nsgf
RUN pip install --no-cache-dir --extra-index-url ${TORCH_INDEX} ".[features]"

WORKDIR /nsgf
VOLUME /nsgf/runs
ENTRYPOINT ["python", "-m", "nsgf"]
CMD ["train", "--exp", "2d", "--dataset", "checkerboard", "--train-iters", "7000", "--pool-batches", "20"]
