# Images of the programs that `make build` puts into bin/, with certificates and nothing else.
#
#	docker build --target lockstep -t registry.example/lockstep:1 .
#	docker build --target exec -t registry.example/lockstep-exec:1 .
FROM gcr.io/distroless/static-debian12 AS base

# What pods of workflows take lockstep-exec from.
FROM base AS exec
COPY bin/lockstep-exec bin/lockstep-exec-io /
ENTRYPOINT ["/lockstep-exec"]

# The manager, the agents, and the command line.
FROM base AS lockstep
COPY bin/lockstep /usr/bin/lockstep
ENTRYPOINT ["lockstep"]
