# Dovetail in an image: docker build -t dovetail .
FROM python:3.11-slim
WORKDIR /dovetail
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir .
COPY examples examples
ENTRYPOINT ["dovetail"]
CMD ["--help"]
