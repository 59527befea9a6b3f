"""SchemaRegistry: schemas, their versions, and what topics ask of their messages."""

from pydanube.model.schemas import read_validation_policy
from pydanube.registry.decisions import NewSchema
from pydanube.registry.registry import FoundSchema, SchemaRegistry
from pydanube.topics.topic_schemas import TopicSchemas
from pydanube.wire.calls import Call, HandlerTable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from pydanube.wire.danube.services import serve


class SchemaRegistryServicer:
    """Translates, delegates, translates back."""

    def __init__(self, schemas: SchemaRegistry, topics: TopicSchemas) -> None:
        self._schemas = schemas
        self._topics = topics

    def register(self, table: HandlerTable) -> None:
        """Serve the methods of SchemaRegistry, and our own."""
        serve(table, services.REGISTER_SCHEMA, self.register_schema)
        serve(table, services.GET_SCHEMA, self.get_schema)
        serve(table, services.GET_LATEST_SCHEMA, self.get_latest_schema)
        serve(table, services.LIST_VERSIONS, self.list_versions)
        serve(table, services.CHECK_COMPATIBILITY, self.check_compatibility)
        serve(table, services.DELETE_SCHEMA_VERSION, self.delete_schema_version)
        serve(table, services.SET_COMPATIBILITY_MODE, self.set_compatibility_mode)
        serve(table, services.CONFIGURE_TOPIC_SCHEMA, self.configure_topic_schema)
        serve(table, services.UPDATE_TOPIC_VALIDATION_POLICY, self.update_validation_policy)
        serve(table, services.GET_TOPIC_SCHEMA_CONFIG, self.get_topic_schema_config)
        serve(table, services.LIST_SUBJECTS, self.list_subjects)
        serve(table, services.DELETE_SUBJECT, self.delete_subject)

    # Schemas.

    async def register_schema(
        self, request: schema.RegisterSchemaRequest, call: Call
    ) -> schema.RegisterSchemaResponse:
        """Add a version to a subject, or find the one that is equal."""
        registered = await self._schemas.register(
            NewSchema(
                subject=request.subject,
                schema_type=request.schema_type,
                definition=request.schema_definition,
                description=request.description,
                created_by=request.created_by,
                tags=tuple(request.tags),
            )
        )
        return schema.RegisterSchemaResponse(
            schema_id=registered.schema_id,
            version=registered.version,
            is_new_version=registered.is_new_version,
            fingerprint=registered.fingerprint,
        )

    async def get_schema(
        self, request: schema.GetSchemaRequest, call: Call
    ) -> schema.GetSchemaResponse:
        """Return a version of the subject with an id, the latest if none is named."""
        version = request.version if request.HasField("version") else None
        return _found(self._schemas.find(request.schema_id, version))

    async def get_latest_schema(
        self, request: schema.GetLatestSchemaRequest, call: Call
    ) -> schema.GetSchemaResponse:
        """Return the latest version of a subject."""
        return _found(self._schemas.find_version(request.subject))

    async def list_versions(
        self, request: schema.ListVersionsRequest, call: Call
    ) -> schema.ListVersionsResponse:
        """Describe all versions of a subject in a line each."""
        versions = [
            schema.SchemaVersionInfo(
                version=found.version.version,
                created_at=found.version.created_ms // 1000,
                created_by=found.version.created_by,
                description=found.version.description,
                fingerprint=found.version.fingerprint,
                schema_id=found.subject.id,
            )
            for found in self._schemas.versions(request.subject)
        ]
        return schema.ListVersionsResponse(versions=versions)

    async def list_subjects(
        self, request: schema.ListSubjectsRequest, call: Call
    ) -> schema.ListSubjectsResponse:
        """Describe all subjects in a line each, but for those whose versions were all deleted."""
        subjects = []
        for record in self._schemas.subjects():
            latest = record.latest
            if latest is None:
                continue  # It only keeps its id and its numbers, for the next version.
            summary = schema.SubjectSummary(
                subject=record.subject,
                schema_type=latest.schema_type,
                latest_version=latest.version,
                compatibility_mode=record.mode,
                schema_id=record.id,
                tags=self._schemas.tags(record),
            )
            subjects.append(summary)
        return schema.ListSubjectsResponse(subjects=subjects)

    async def check_compatibility(
        self, request: schema.CheckCompatibilityRequest, call: Call
    ) -> schema.CheckCompatibilityResponse:
        """Tell whether a definition could become the next version; changes nothing."""
        errors = await self._schemas.check_compatibility(
            request.subject,
            request.schema_type,
            request.new_schema_definition,
            request.compatibility_mode if request.HasField("compatibility_mode") else None,
        )
        return schema.CheckCompatibilityResponse(is_compatible=not errors, errors=errors)

    async def set_compatibility_mode(
        self, request: schema.SetCompatibilityModeRequest, call: Call
    ) -> schema.SetCompatibilityModeResponse:
        """Set what later versions are held to."""
        await self._schemas.set_mode(request.subject, request.compatibility_mode)
        text = f"{request.subject} is {request.compatibility_mode.strip().lower()} now"
        return schema.SetCompatibilityModeResponse(success=True, message=text)

    async def delete_schema_version(
        self, request: schema.DeleteSchemaVersionRequest, call: Call
    ) -> schema.DeleteSchemaVersionResponse:
        """Delete a version that no topic needs."""
        await self._schemas.delete_version(request.subject, request.version, force=request.force)
        text = f"version {request.version} of {request.subject} is deleted"
        subject = self._schemas.subject(request.subject)
        if subject is not None and subject.latest is None:
            text += (
                f"; it was the last one, and {request.subject} is listed again once it gets "
                f"version {subject.next_version}"
            )
        return schema.DeleteSchemaVersionResponse(success=True, message=text)

    async def delete_subject(
        self, request: own.DeleteSubjectRequest, call: Call
    ) -> own.DeleteSubjectResponse:
        """Delete a subject that no topic is bound to."""
        versions = await self._schemas.delete_subject(request.subject, force=request.force)
        return own.DeleteSubjectResponse(versions=versions)

    # Topics.

    async def configure_topic_schema(
        self, request: schema.ConfigureTopicSchemaRequest, call: Call
    ) -> schema.ConfigureTopicSchemaResponse:
        """Bind a topic to a subject, and say how strict it is."""
        await self._topics.configure(
            request.topic_name,
            request.schema_subject,
            read_validation_policy(request.validation_policy),
            validates_payloads=request.enable_payload_validation,
        )
        text = f"{request.topic_name} is bound to {request.schema_subject} now"
        return schema.ConfigureTopicSchemaResponse(success=True, message=text)

    async def update_validation_policy(
        self, request: schema.UpdateTopicValidationPolicyRequest, call: Call
    ) -> schema.UpdateTopicValidationPolicyResponse:
        """Say how strict a topic is."""
        policy = read_validation_policy(request.validation_policy)
        await self._topics.set_policy(
            request.topic_name, policy, validates_payloads=request.enable_payload_validation
        )
        text = f"{request.topic_name} has the policy {policy} now"
        return schema.UpdateTopicValidationPolicyResponse(success=True, message=text)

    async def get_topic_schema_config(
        self, request: schema.GetTopicSchemaConfigRequest, call: Call
    ) -> schema.GetTopicSchemaConfigResponse:
        """Return what a topic is bound to, and how strict it is."""
        config = self._topics.config(request.topic_name)
        return schema.GetTopicSchemaConfigResponse(
            schema_subject=config.subject or "",
            validation_policy=config.policy,
            enable_payload_validation=config.validates_payloads,
            schema_id=config.schema_id or 0,
        )


def _found(found: FoundSchema) -> schema.GetSchemaResponse:
    subject, version = found.subject, found.version
    return schema.GetSchemaResponse(
        schema_id=subject.id,
        version=version.version,
        subject=subject.subject,
        schema_type=version.schema_type,
        schema_definition=version.definition,
        description=version.description,
        created_at=version.created_ms // 1000,
        created_by=version.created_by,
        tags=version.tags,
        fingerprint=version.fingerprint,
        compatibility_mode=subject.mode,
    )
