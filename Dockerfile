# One image for the worker, the gateway and the one-shot commands: `docker build -t hatchway .`
#
# The dependencies come from the package index, at the versions of constraints.txt. Where a build may not reach an index,
# put wheels of everything, Hatchway included, into dist/wheels first: then nothing else is asked.

ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
RUN python3 -m venv /opt/hatchway
WORKDIR /src
# The pattern matches nothing where nobody made wheels; COPY is content as long as one of its sources exists.
COPY constraints.txt pyproject.toml README.md LICENSE worker.py dist/wheel[s] ./
COPY hatchway hatchway
COPY workflows workflows
COPY activities activities
COPY examples examples
RUN if ls ./*.whl >/dev/null 2>&1; then \
      /opt/hatchway/bin/pip install --no-cache-dir --no-index --find-links . hatchway; \
    else \
      /opt/hatchway/bin/pip install --no-cache-dir -c constraints.txt .; \
    fi

FROM ${PYTHON_IMAGE}
# A number, so that Kubernetes' runAsNonRoot can check it; without a home that could be written to.
RUN groupadd --gid 10001 hatchway && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin hatchway && \
    install -d -o hatchway -g hatchway -m 0700 /var/lib/hatchway
COPY --from=build /opt/hatchway /opt/hatchway
COPY deploy/entrypoint.sh /usr/local/bin/hatchway-entrypoint
ENV PATH=/opt/hatchway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    XDG_STATE_HOME=/var/lib
USER 10001:10001
WORKDIR /var/lib/hatchway
VOLUME /var/lib/hatchway
ENTRYPOINT ["/usr/local/bin/hatchway-entrypoint"]
CMD ["--help"]
