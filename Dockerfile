FROM python:3.13-slim

COPY . /src
# The second line writes Twisted's list of plug-ins, which the user below may not write.
RUN pip install --no-cache-dir /src && rm -rf /src \
    && twistd --help > /dev/null \
    && useradd --system --no-create-home --shell /usr/sbin/nologin rtmb

USER rtmb
WORKDIR /tmp
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 4222 8080 36912

# The broker speaks first: the beginning of INFO is proof of life. (With --tls-first, or another
# port, give your own check.)
HEALTHCHECK --interval=30s --timeout=3s --start-period=5s --retries=3 \
    CMD ["python", "-c", "import socket, sys; s = socket.create_connection(('127.0.0.1', 4222), 2); sys.exit(s.recv(5) != b'INFO ')"]

STOPSIGNAL SIGTERM
ENTRYPOINT ["twistd", "-n", "--pidfile=", "rtmb", "--interface", "0.0.0.0"]
