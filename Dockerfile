# syntax=docker/dockerfile:1
# The service with the packages that requirements/serve.txt locks, without torch. All the work is in
# service/image/install.sh, so that tests/image can run it without a container engine.

# The Python of .python-version: the tests run on it, and the packages are locked for it.
ARG PYTHON=3.11
# Not the slim one: it has the C compiler that the wheel's build hook uses.
FROM python:${PYTHON}-bookworm AS build
ENV PIP_NO_CACHE_DIR=1
COPY LICENSE README.md pyproject.toml /src/
COPY model_artifacts /src/model_artifacts
COPY requirements /src/requirements
COPY service /src/service
RUN /src/service/image/install.sh /src /opt/vramcast

FROM python:${PYTHON}-slim-bookworm
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="vramcast" \
      org.opencontainers.image.description="GPU scheduling that knows what a training job needs before it runs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PYTHONDONTWRITEBYTECODE=1 \
    HEALTH_URL=http://127.0.0.1:8888/healthz
COPY --from=build /opt/vramcast /opt/vramcast
USER 65532:65532
EXPOSE 8888 9090
HEALTHCHECK --interval=10s --timeout=3s \
    CMD ["/opt/vramcast/bin/python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTH_URL'], timeout=2)"]
ENTRYPOINT ["/opt/vramcast/bin/vramcast"]
CMD ["serve"]
