# The dashboard server: no torch, no root, nothing written outside /data. The base is by digest, for all platforms: how
# to raise it is in docs/recipes/docker.md.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
WORKDIR /src
COPY pyproject.toml requirements-build.txt requirements-server.txt README.md LICENSE NOTICE ./
COPY agent agent
COPY server server
COPY web web
# Every file is the one that was looked at: a package that was changed in the registry ends the build.
RUN pip install --no-cache-dir --require-hashes -r requirements-build.txt \
    && pip wheel --no-cache-dir --require-hashes --wheel-dir /wheels -r requirements-server.txt \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'rangewatch[server,otlp]' \
    && rm -rf /wheels \
    && useradd --system --create-home --home-dir /data --uid 10001 rangewatch
USER rangewatch
VOLUME /data
EXPOSE 8642
ENV RANGEWATCH_HOST=0.0.0.0 RANGEWATCH_DB=/data/rangewatch.db PYTHONUNBUFFERED=1
# Whether the process answers. Whether it can work is /readyz, which docker-compose.yml asks: a new container would not
# bring a database back.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["python", "-m", "rangewatch_server.http.probe", "/healthz"]
# Outside loopback the server refuses to start without RANGEWATCH_TOKEN or a token made by `rangewatch token create`:
# there is no default secret.
CMD ["rangewatch", "serve"]
