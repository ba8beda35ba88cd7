# syntax=docker/dockerfile:1
# The image of the service: what requirements/serve.txt locks, and no torch. Everything happens in service/image/install.sh,
# which tests/image runs without an engine.
FROM python:3.13-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1
COPY LICENSE README.md pyproject.toml /src/
COPY model_artifacts /src/model_artifacts
COPY requirements /src/requirements
COPY service /src/service
RUN /src/service/image/install.sh /src /opt/vramcast

FROM python:3.13-slim-bookworm
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
