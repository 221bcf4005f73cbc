# What is compiled is compiled here: the slim image has no C compiler.
FROM python:3.13 AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
# What rtmb needs is a layer of its own: it stays when only rtmb has changed.
COPY setup.cfg /tmp/setup.cfg
RUN python -c "import configparser as c; f = c.ConfigParser(); f.read('/tmp/setup.cfg'); print(f['options']['install_requires'])" > /tmp/requirements.txt \
    && pip install --no-cache-dir -r /tmp/requirements.txt
# The last line writes Twisted's list of plug-ins, which the user below may not write.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl \
    && useradd --system --no-create-home --shell /usr/sbin/nologin rtmb \
    && twistd --help > /dev/null

USER rtmb
WORKDIR /tmp
# Each option is a variable: `docker run -e RTMB_TOKEN=…`.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RTMB_INTERFACE=0.0.0.0
EXPOSE 4222 8080 36912

# Without the HTTP door, or with TLS, give your own check.
HEALTHCHECK --interval=30s --timeout=3s --start-period=5s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/healthz' % os.environ.get('RTMB_HTTP_PORT', 8080), timeout=2)"]

STOPSIGNAL SIGTERM
ENTRYPOINT ["rtmb"]
CMD ["serve"]
