# An image with the protofl command, for the CPU or for CUDA:
#
#   docker build --tag protofl .                                  torch for the CPU
#   docker build --build-arg TORCH=cuda --tag protofl:cuda .      torch with CUDA; run it with --gpus all
#   docker run --rm -v "$PWD:/work" protofl run fedsa --models htcnn8
#
# docs/how-to/install.md describes all arguments.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH=cpu
# What to install: the checkout, a wheel below dist, or a version of PyPI such as protofl==1.0.0.
ARG PROTOFL=.
# Extras, separated by commas: --build-arg EXTRAS=tables,hf
ARG EXTRAS=
# Further distributions, such as --build-arg PLUGINS=./plugins/protofl_privacy
ARG PLUGINS=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/protofl
ENV PATH=/opt/protofl/bin:$PATH
# pyproject.toml has the versions that protofl works with.
# hadolint ignore=DL3013
RUN case "$TORCH" in \
      cpu) pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu ;; \
      cuda) pip install torch torchvision ;; \
      *) echo "TORCH=$TORCH: expected cpu or cuda" >&2; exit 2 ;; \
    esac
WORKDIR /src
COPY . .
# hadolint ignore=DL3013,SC2086
RUN pip install "${PROTOFL}${EXTRAS:+[$EXTRAS]}" $PLUGINS && protofl --version

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="protofl" \
      org.opencontainers.image.description="Prototype-based heterogeneous federated learning" \
      org.opencontainers.image.source="https://github.com/protofl/protofl" \
      org.opencontainers.image.licenses="Apache-2.0"
# /work has the runs, /data decoded data sets. Both can be written by any user (docker run --user).
RUN useradd --uid 1000 --create-home protofl \
    && mkdir /work /data && chmod 1777 /work /data
COPY --from=build /opt/protofl /opt/protofl
ENV PATH=/opt/protofl/bin:$PATH PROTOFL_DATA_DIR=/data MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
USER 1000
WORKDIR /work
VOLUME ["/data"]
ENTRYPOINT ["protofl"]
CMD ["--help"]
