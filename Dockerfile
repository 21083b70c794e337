# Relays, the purge, the web page and every other command: `docker build -t inbox-outbox .`
# Every option can also come from the environment: `--lease` of `inbox-outbox outbox relay` is
# INBOX_OUTBOX_OUTBOX_RELAY_LEASE.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir ".[binary,cli,kafka,mysql,otel,prometheus,rabbitmq,redis,web]"

FROM python:${PYTHON}-slim
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 INBOX_OUTBOX_LOG_FORMAT=json
USER 10001:10001
EXPOSE 9464
# For relays and consumers that answer probes; the page has another port, see docker-compose.yml.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9464/live', timeout=4)"]
ENTRYPOINT ["inbox-outbox"]
CMD ["outbox", "relay", "--listen", "0.0.0.0:9464"]
