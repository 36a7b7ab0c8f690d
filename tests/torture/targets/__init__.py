"""Targets of forwarded jobs, each a process that records what it receives and what it confirms.

webhook, amqp, kafka    peers: they record each message before they confirm it, and misbehave when a fault says so
rabbit, redis, cluster  queues of a RabbitMQ and a Redis, and librdkafka's mock cluster of Kafka: nobody sees what these
                        confirm, so that only what they hold is recorded
"""
