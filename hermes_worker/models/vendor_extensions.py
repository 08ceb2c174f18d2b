"""Two vendors with wires of their own: extensions like any foreign one, with optional dependencies.

They prove the door: nothing else in the product names them but ``installed.BUILT_IN``.
"""

from __future__ import annotations

from hermes_worker.core.model_capabilities import CacheLayout, Wire, WireNeeds
from hermes_worker.extension import Extension
from hermes_worker.models.provider_row import CacheRule, ProviderRow, WireRow

BEDROCK = Extension(
    name="bedrock",
    version="1",
    summary="Amazon Bedrock over its Converse API",
    providers=(
        ProviderRow(
            name="bedrock",
            base_url="https://bedrock-runtime.{region}.amazonaws.com",
            usual_region="us-east-1",
            default_model="",
            key_variables=("AWS_BEARER_TOKEN_BEDROCK", "BEDROCK_API_KEY"),
            aliases=("aws", "aws-bedrock", "amazon-bedrock"),
            host_pattern=r"bedrock-runtime(?:-fips)?\.(?:[a-z0-9-]+\.)?amazonaws\.com(?:\.cn)?",
            wire=Wire.BEDROCK_CONVERSE,
            is_aggregator=True,
            service_tiers=("default", "flex", "priority", "reserved"),
            cache_marks=(CacheRule(families=("claude",), layout=CacheLayout.NATIVE),),
            source="service model of botocore 1.44 (PyPI); docs.aws.amazon.com/bedrock (API keys), November 2026",
        ),
    ),
    wires=(
        WireRow(
            name=Wire.BEDROCK_CONVERSE.value,
            implementation="hermes_worker.models.wires.bedrock_converse:BedrockConverse",
            needs=WireNeeds(keeps_reasoning_details=True, keeps_anthropic_blocks=True),
            extra="bedrock",
            is_called=False,
        ),
    ),
)

GEMINI = Extension(
    name="gemini",
    version="1",
    summary="Google's Gemini API over its own wire",
    providers=(
        ProviderRow(
            name="gemini-native",
            base_url="https://generativelanguage.googleapis.com/v1beta",
            default_model="gemini-3-flash-preview",
            key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            aliases=("google-native",),
            wire=Wire.GEMINI_GENERATE,
            price_list="google",
            source="ai.google.dev/api/generate-content and the types of google-genai 3.4 (PyPI), November 2026",
        ),
    ),
    wires=(
        WireRow(
            name=Wire.GEMINI_GENERATE.value,
            implementation="hermes_worker.models.wires.gemini_generate:GeminiGenerate",
            needs=WireNeeds(keeps_thought_signatures=True),
            extra="gemini",
            is_called=False,
        ),
    ),
)
