# Dovetail in an image: docker build -t dovetail .
# With more of it, such as Ray for `dovetail launch`: docker build --build-arg EXTRAS=ray -t dovetail .
FROM python:3.11-slim
ARG EXTRAS=""
WORKDIR /dovetail
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"
COPY examples examples
ENTRYPOINT ["dovetail"]
CMD ["--help"]
