"""Contract: confluent-kafka's registry client and serialisers work against the gateway."""

import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

B = '{"name": "b", "type": "string", "default": ""}'
A = '{"name": "a", "type": "int"}'


def avro(text, references=()):
    return Schema(text, "AVRO", [SchemaReference(*reference) for reference in references])


def refused(call, *args, **options):
    with pytest.raises(SchemaRegistryError) as caught:
        call(*args, **options)
    return caught.value.http_status_code, caught.value.error_code


def test_a_schema_is_registered_once_and_has_one_id_everywhere(registry, subject, record):
    first = registry.register_schema(subject, avro(record()))
    assert registry.register_schema(subject, avro(record())) == first
    assert registry.register_schema(f"{subject}-other", avro(record())) == first
    registered = registry.get_latest_version(subject)
    assert (registered.version, registered.schema_id) == (1, first)
    assert registry.get_schema(first).schema_str == registered.schema.schema_str
    places = registry.get_schema_versions(first)
    assert {(place.subject, place.version) for place in places} == {
        (subject, 1),
        (f"{subject}-other", 1),
    }
    with SchemaRegistryClient(_conf(registry)) as another:  # without what this one remembers
        by_guid = another.get_schema_by_guid(registered.guid)
    assert by_guid.schema_str == registered.schema.schema_str


def test_white_space_and_the_order_of_attributes_make_no_other_schema(registry, subject):
    name = subject.replace("-", "_")
    first = registry.register_schema(
        subject, avro(f'{{"type": "record", "name": "{name}", "fields": []}}')
    )
    again = avro(f'{{ "fields":[],\n"name":"{name}", "type":"record" }}')
    assert registry.register_schema(subject, again) == first
    assert registry.lookup_schema(subject, again).version == 1


def test_versions_follow_each_other_and_incompatible_ones_are_refused(registry, subject, record):
    registry.register_schema(subject, avro(record()))
    assert not registry.test_compatibility(subject, avro(record(A.replace("int", "string"))))
    assert registry.test_compatibility(subject, avro(record(A, B)))
    registry.register_schema(subject, avro(record(A, B)))
    assert registry.get_versions(subject) == [1, 2]
    without_default = record(A, B, '{"name": "c", "type": "string"}')
    assert refused(registry.register_schema, subject, avro(without_default)) == (409, 40901)
    assert registry.get_versions(subject) == [1, 2]


def test_compatibility_levels_are_set_for_a_subject_and_for_all(registry, subject, record):
    assert registry.get_compatibility() == "BACKWARD"
    assert refused(registry.get_compatibility, subject) == (404, 40408)
    assert refused(registry.set_compatibility, subject, "sideways") == (422, 42203)
    registry.set_compatibility(subject, "NONE")
    assert registry.get_compatibility(subject) == "NONE"
    registry.register_schema(subject, avro(record()))
    registry.register_schema(subject, avro('"string"'))
    registry.set_config(subject, ServerConfig(ConfigCompatibilityLevel.FULL_TRANSITIVE))
    assert refused(registry.register_schema, subject, avro('"bytes"')) == (409, 40901)
    former = registry.delete_config(subject)
    assert former.compatibility_level == ConfigCompatibilityLevel.FULL_TRANSITIVE
    assert refused(registry.get_compatibility, subject) == (404, 40408)


def test_what_does_not_exist_has_the_code_that_clients_know(registry, subject, record):
    assert refused(registry.get_latest_version, subject) == (404, 40401)
    assert refused(registry.get_schema, 1_999_999) == (404, 40403)
    assert refused(registry.lookup_schema, subject, avro(record())) == (404, 40401)
    registry.register_schema(subject, avro(record()))
    assert refused(registry.get_version, subject, 7) == (404, 40402)
    assert refused(registry.get_version, subject, "x") == (422, 42202)
    assert refused(registry.lookup_schema, subject, avro(record(B))) == (404, 40403)
    assert refused(registry.register_schema, subject, avro("{")) == (422, 42201)
    assert refused(registry.register_schema, subject, Schema("{}", "XML")) == (422, 42201)


def test_deletion_is_soft_first_and_then_for_good(registry, subject, record):
    schema_id = registry.register_schema(subject, avro(record()))
    registry.register_schema(subject, avro(record(A, B)))
    assert refused(registry.delete_version, subject, 1, permanent=True) == (404, 40407)
    assert registry.delete_version(subject, 1) == 1
    assert refused(registry.delete_version, subject, 1) == (404, 40406)
    assert refused(registry.get_version, subject, 1) == (404, 40402)
    assert registry.get_version(subject, 1, deleted=True).schema_id == schema_id
    assert registry.get_versions(subject) == [2]
    assert registry.get_schema(schema_id).schema_str, "records with the id can still be read"
    assert registry.delete_version(subject, 1, permanent=True) == 1
    with SchemaRegistryClient(_conf(registry)) as another:
        assert refused(another.get_schema, schema_id) == (404, 40403)
    assert registry.delete_subject(subject) == [2]
    assert subject not in registry.get_subjects()
    assert subject in registry.get_subjects(deleted=True)
    assert refused(registry.delete_version, subject, 2) == (404, 40406)
    assert registry.delete_subject(subject, permanent=True) == [2]
    assert subject not in registry.get_subjects(deleted=True)


def _conf(registry):
    return {"url": registry._rest_client.base_urls[0]}


def test_a_schema_that_was_deleted_can_be_registered_again_with_its_id(registry, subject, record):
    schema_id = registry.register_schema(subject, avro(record()))
    registry.delete_subject(subject)
    with SchemaRegistryClient(_conf(registry)) as another:
        assert another.register_schema(subject, avro(record())) == schema_id
        assert another.get_latest_version(subject).version == 2


def test_modes(registry, subject, record):
    assert registry.get_global_mode() == "READWRITE"
    assert refused(registry.get_mode, subject) == (404, 40409)
    registry.update_mode(subject, "READONLY")
    assert registry.get_mode(subject) == "READONLY"
    assert refused(registry.register_schema, subject, avro(record())) == (422, 42205)
    assert refused(registry.update_mode, subject, "SOMETIMES") == (422, 42204)
    assert registry.delete_mode(subject) == "READONLY"
    assert registry.register_schema(subject, avro(record()))


def test_references_between_schemas(registry, subject, record):
    part = f"{subject}-part"
    name = f"P{subject.replace('-', '_')}"
    registry.register_schema(part, avro(f'{{"type": "record", "name": "{name}", "fields": [{A}]}}'))
    whole = avro(record(f'{{"name": "p", "type": "{name}"}}'), [(name, part, 1)])
    schema_id = registry.register_schema(subject, whole)
    assert registry.get_referenced_by(part, 1) == [schema_id]
    found = registry.get_latest_version(subject).schema
    assert [
        (reference.name, reference.subject, reference.version) for reference in found.references
    ] == [(name, part, 1)]
    assert refused(registry.delete_subject, part) == (422, 42206)
    missing = avro(record(f'{{"name": "p", "type": "{name}"}}'), [(name, part, 9)])
    assert refused(registry.register_schema, subject, missing) == (422, 42201)


# Serialisers


def context(topic):
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_values_survive_serialisation_and_evolution(registry, subject, record):
    old = AvroSerializer(registry, record(A))
    new = AvroSerializer(registry, record(A, B))
    values = [
        old({"a": 1}, context(subject)),
        new({"a": 2, "b": "x"}, context(subject)),
    ]
    reader = AvroDeserializer(registry, record(A, B))
    assert [reader(value, context(subject)) for value in values] == [
        {"a": 1, "b": ""},
        {"a": 2, "b": "x"},
    ]
    assert registry.get_versions(f"{subject}-value") == [1, 2]


def test_json_values_are_validated_by_their_schema(registry, subject):
    text = f"""{{"title": "{subject}", "type": "object", "additionalProperties": false,
               "properties": {{"a": {{"type": "integer"}}}}, "required": ["a"]}}"""
    serializer = JSONSerializer(text, registry)
    value = serializer({"a": 5}, context(subject))
    reader = JSONDeserializer(None, schema_registry_client=registry)
    assert reader(value, context(subject)) == {"a": 5}
    assert registry.get_latest_version(f"{subject}-value").schema.schema_type == "JSON"


@pytest.fixture(scope="module")
def messages():
    """Two message types in two files, of which one imports the other and a well-known one."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    field = descriptor_pb2.FieldDescriptorProto
    part = descriptor_pb2.FileDescriptorProto(name="shop/part.proto", package="shop")
    part.syntax = "proto3"
    message = part.message_type.add(name="Part")
    message.field.add(name="sku", number=1, type=field.TYPE_STRING, label=1)
    order = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop")
    order.syntax = "proto3"
    order.dependency.extend(["shop/part.proto", "google/protobuf/timestamp.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=1)
    message.field.add(
        name="parts", number=2, type=field.TYPE_MESSAGE, type_name=".shop.Part", label=3
    )
    message.field.add(
        name="at", number=3, type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp", label=1,
    )  # fmt: skip
    for file in (part, order):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_messages_with_imports(registry, subject, messages):
    serializer = ProtobufSerializer(messages, registry, {"use.deprecated.format": False})
    order = messages(id=7, parts=[{"sku": "x"}, {"sku": "y"}])
    value = serializer(order, context(subject))
    reader = ProtobufDeserializer(messages, {"use.deprecated.format": False}, registry)
    assert reader(value, context(subject)) == order
    found = registry.get_latest_version(f"{subject}-value").schema
    assert "message Order {" in found.schema_str, "the registry has the text of a .proto file"
    assert [reference.subject for reference in found.references] == ["shop/part.proto"]
    again = ProtobufSerializer(messages, registry, {"use.deprecated.format": False})
    assert again(order, context(subject)) == value
    assert registry.get_versions(f"{subject}-value") == [1]
