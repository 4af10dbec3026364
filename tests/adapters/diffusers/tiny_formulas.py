"""Tiny pipelines that combine their predictions by a formula of their own, or that have two networks."""

import diffusers
import torch
from diffusers.pipelines.omnigen import pipeline_omnigen
from tiny_models import IMAGE, PAIR, PICTURE, POOLED, SMALL, TEXT, TIMED, UNET, VAE, Case, component
from tiny_models import seeded as embedded
from tiny_variants import pictured


class Instructions:
    """Stands for OmniGen's processor, which needs torchvision: three instructions for each sample."""

    max_image_size = 1024

    def __init__(self, tokenizer, max_image_size):
        pass

    def __call__(self, prompt, pictures, height, width, **more):
        rows, length = 3 * len(prompt), 5 + 1 + height * width // 4
        ids = torch.arange(rows * 5).reshape(rows, 5) % 16
        places = torch.arange(length).expand(rows, length)
        mask = torch.ones(rows, length, length)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": places,
                "input_pixel_values": [], "input_image_sizes": {}}  # fmt: skip


class Conditions(torch.nn.Module):
    """Stands for ACE-Step's condition encoder: its learned null embedding, and what it makes of the text."""

    def __init__(self):
        super().__init__()
        drawn = torch.Generator().manual_seed(3)
        self.null_condition_emb = torch.nn.Parameter(torch.randn(1, 1, 16, generator=drawn))
        self.silence_latent = torch.nn.Parameter(torch.randn(1, 8, 4, generator=drawn))

    dtype = property(lambda self: self.silence_latent.dtype)
    device = property(lambda self: self.silence_latent.device)

    def forward(self, text_hidden_states, text_attention_mask, **more):
        return text_hidden_states, text_attention_mask


def music(pipe, prompt, instruction, **more):
    texts = [f"{instruction}{text}" for text in prompt]
    mask = torch.ones(len(prompt), 5, dtype=torch.long)
    return (*(embedded(pipe, texts, 5, 16), mask) * 2,)


def packed(pipe, prompt, grid_h, grid_w, max_sequence_length, device):
    ids = pipe._prepare_ids([max_sequence_length] * len(prompt), grid_h, grid_w, max_sequence_length, device)
    return embedded(pipe, prompt, max_sequence_length + grid_h * grid_w, 16), *ids


pipeline_omnigen.OmniGenMultiModalProcessor = Instructions
IDEOGRAM = {
    "in_channels": 4,
    "num_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "adaln_dim": 8,
    "llm_features_dim": 16,
    "mrope_section": (2, 1, 1),
}
EDITED = PICTURE | {"image_guidance_scale": 1.5}


def second_network():
    made = component("Ideogram4Transformer2DModel", IDEOGRAM)
    for parameter in made.parameters():
        parameter.data.normal_(0, 0.2)
    return made


# fmt: off
FORMULAS = {
    "OmniGenPipeline": Case(
        "OmniGenTransformer2DModel",
        {"in_channels": 4, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
         "intermediate_size": 16, "num_layers": 1, "pad_token_id": 0, "vocab_size": 16, "time_step_dim": 8,
         "pos_embed_max_size": 16,
         "rope_scaling": {"long_factor": [1, 2, 3, 4], "short_factor": [1, 2, 3, 4]}},
        {}, SMALL | {"prompt": ["a", "b"], "input_images": [None, None], "img_guidance_scale": 1.6},
        parts=VAE, std=0.5),
    "StableDiffusionInstructPix2PixPipeline": Case(
        "UNet2DConditionModel", UNET | {"in_channels": 8}, PAIR | EDITED, {}, std=0.4,
        scheduler=diffusers.DDIMScheduler, parts=VAE),
    "StableDiffusionXLInstructPix2PixPipeline": Case(
        "UNet2DConditionModel", UNET | TIMED | {"in_channels": 8}, POOLED | EDITED, SMALL, std=0.4,
        scheduler=diffusers.EulerDiscreteScheduler, parts=VAE),
    "AceStepPipeline": Case(
        "AceStepTransformer1DModel",
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 8, "in_channels": 12, "audio_acoustic_hidden_dim": 4},
        {}, {"prompt": ["a", "b"], "lyrics": "", "audio_duration": 2.0}, settings={"encode_prompt": music},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
        parts={"condition_encoder": Conditions, "vae": ("AutoencoderOobleck", {
            "encoder_hidden_size": 4, "downsampling_ratios": [1, 2], "decoder_channels": 4,
            "decoder_input_channels": 4, "audio_channels": 2, "channel_multiples": [1, 2],
            "sampling_rate": 8})}),
    "Ideogram4Pipeline": Case(
        "Ideogram4Transformer2DModel", IDEOGRAM, {},
        IMAGE | {"prompt": ["a", "b"], "max_sequence_length": 5, "guidance_schedule": None},
        settings={"encode_prompt": packed}, parts={"unconditional_transformer": second_network}),
    "LuminaPipeline": Case(
        "LuminaNextDiT2DModel",
        {"sample_size": 8, "in_channels": 4, "hidden_size": 16, "num_layers": 1, "num_attention_heads": 2,
         "num_kv_heads": 1, "multiple_of": 16, "cross_attention_dim": 16},
        TEXT, IMAGE),
    "StableVideoDiffusionPipeline": Case(
        "UNetSpatioTemporalConditionModel",
        {"sample_size": 8, "block_out_channels": (32, 32), "addition_time_embed_dim": 8,
         "projection_class_embeddings_input_dim": 24, "layers_per_block": 1, "cross_attention_dim": 16,
         "num_attention_heads": 2, "num_frames": 3,
         "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")},
        PICTURE, SMALL | {"num_frames": 3, "return_dict": True}, scale="max_guidance_scale", std=0.4,
        settings={"_encode_image": pictured},
        scheduler=lambda: diffusers.EulerDiscreteScheduler(prediction_type="v_prediction"),
        parts={"vae": ("AutoencoderKLTemporalDecoder", {
            "block_out_channels": (32,), "latent_channels": 4,
            "down_block_types": ("DownEncoderBlock2D",)})}),
}
# fmt: on
