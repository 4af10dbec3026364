"""More transformers of the table: audio, video and editing."""

from __future__ import annotations

from dataclasses import replace

import diffusers
import torch
from PIL import Image
from tiny_models import BATCH, CASES, IMAGE, PAIR, TEXT, Case, autoencoder, mask
from tiny_parts import (
    Processor,
    audio_prompt,
    cog_autoencoder,
    fibo_prompt,
    hunyuan_autoencoder,
    ltx2_parts,
    seeded,
    z_control,
)
from tiny_unets import CONTROL, PERTURBED, SAFE, layers
from tiny_variants import (
    HOLE,
    PICTURE,
    SMALL,
    STRENGTH,
    VARIANTS,
    VIDEO,
    changed,
    latent_images,
    wan_autoencoder,
)

COGVIDEO = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4,
            "time_embed_dim": 4, "text_embed_dim": 16, "num_layers": 1, "sample_width": 8, "sample_height": 8,
            "sample_frames": 9, "max_text_seq_length": 5}  # fmt: skip

# fmt: off
TRANSFORMERS: dict[str, Case] = {
    "StableDiffusion3PAGImg2ImgPipeline": changed(
        "StableDiffusion3Pipeline", PICTURE, SMALL | STRENGTH | PERTURBED,
        parts=lambda: latent_images(4) | layers("blocks.0")),
    "SanaPAGPipeline": changed("SanaPipeline", {}, PERTURBED, parts=lambda: layers("transformer_blocks.0")),
    "PixArtSigmaPAGPipeline": changed(
        "PixArtSigmaPipeline", {}, PERTURBED, parts=lambda: layers("blocks.0")),
    "StableAudio3Pipeline": Case(
        "StableAudio3DiTModel",
        {"io_channels": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "cond_token_dim": 16,
         "global_cond_dim": 16, "local_add_cond_dim": 9, "timestep_features_dim": 8, "ff_mult": 2.0,
         "num_memory_tokens": 2, "use_differential_attention": False},
        PAIR | {"encoder_attention_mask": mask(BATCH, 5), "negative_encoder_attention_mask": mask(BATCH, 5)},
        {"duration": 1.0},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
        parts=lambda: {
            "vae": diffusers.AutoencoderSAME(
                audio_channels=2, patch_size=2, encoder_channels=8, encoder_c_mults=(2,),
                encoder_strides=(2,),
                encoder_transformer_depths=(1,), latent_dim=8, use_differential_attention=False, dim_heads=4,
                ff_mult=2, sampling_rate=64),
            "duration_embedder": diffusers.pipelines.stable_audio_3.StableAudio3DurationEmbedder(
                output_dim=16, fourier_dim=8)},
    ),
    "CogVideoXPipeline": Case(
        "CogVideoXTransformer3DModel",
        COGVIDEO,
        PAIR, IMAGE | {"num_frames": 9, "max_sequence_length": 5}, std=0.4,
        scheduler=lambda: diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction"),
    ),
    "CogVideoXImageToVideoPipeline": Case(
        "CogVideoXTransformer3DModel", COGVIDEO | {"in_channels": 8},
        PAIR | PICTURE, SMALL | {"num_frames": 9, "max_sequence_length": 5},
        scheduler=lambda: diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction"),
        parts=cog_autoencoder, std=0.4,
    ),
    "CogVideoXVideoToVideoPipeline": Case(
        "CogVideoXTransformer3DModel", COGVIDEO, PAIR | VIDEO, SMALL | STRENGTH | {"max_sequence_length": 5},
        scheduler=lambda: diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction"),
        parts=cog_autoencoder, std=0.4,
    ),
    "CogVideoXFunControlPipeline": Case(
        "CogVideoXTransformer3DModel", COGVIDEO | {"in_channels": 8},
        PAIR | {"control_video": VIDEO["video"]}, SMALL | {"max_sequence_length": 5},
        scheduler=lambda: diffusers.CogVideoXDDIMScheduler(prediction_type="v_prediction"),
        parts=cog_autoencoder, std=0.4,
    ),
    "HunyuanVideoImageToVideoPipeline": Case(
        "HunyuanVideoTransformer3DModel",
        CASES["HunyuanVideoPipeline"].config
        | {"guidance_embeds": False, "image_condition_type": "token_replace", "patch_size": 1},
        CASES["HunyuanVideoPipeline"].inputs | PICTURE, SMALL | {"num_frames": 5},
        scale="true_cfg_scale", parts=hunyuan_autoencoder,
    ),
    "ZImageControlNetPipeline": changed(
        "ZImagePipeline", CONTROL, SMALL, parts=lambda: latent_images(4) | {"controlnet": z_control(4)}),
    "ZImageControlNetInpaintPipeline": changed(
        "ZImagePipeline", HOLE | CONTROL, SMALL,
        parts=lambda: latent_images(4) | {"controlnet": z_control(9)}),
    "LTX2Pipeline": Case(
        "LTX2VideoTransformer3DModel",
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8,
         "cross_attention_dim": 16, "audio_in_channels": 4, "audio_out_channels": 4,
         "audio_num_attention_heads": 2, "audio_attention_head_dim": 4, "audio_cross_attention_dim": 8,
         "num_layers": 2, "caption_channels": 16, "rope_double_precision": False, "rope_type": "split",
         "vae_scale_factors": (8, 32, 32)},
        {"prompt_embeds": (BATCH, 5, 16 * 3), "negative_prompt_embeds": (BATCH, 5, 16 * 3),
         "prompt_attention_mask": mask(BATCH, 5), "negative_prompt_attention_mask": mask(BATCH, 5)},
        {"height": 32, "width": 32, "num_frames": 5, "frame_rate": 25.0, "stg_scale": 0.0,
         "modality_scale": 1.0, "guidance_rescale": 0.0, "audio_guidance_scale": 5.0, "audio_stg_scale": 0.0,
         "audio_modality_scale": 1.0, "audio_guidance_rescale": 0.0,
         "spatio_temporal_guidance_blocks": [1], "use_cross_timestep": False, "max_sequence_length": 5},
        parts=ltx2_parts,
    ),
    "LattePipeline": Case(
        "LatteTransformer3DModel",
        {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 8,
         "num_layers": 1,
         "cross_attention_dim": 16, "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 1000,
         "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "caption_channels": 16,
         "video_length": 2},
        PAIR, IMAGE | {"video_length": 2, "negative_prompt": None, "clean_caption": False},
        scheduler=diffusers.DDIMScheduler,
    ),
    "AllegroPipeline": Case(
        "AllegroTransformer3DModel",
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4,
         "num_layers": 1,
         "cross_attention_dim": 24, "sample_height": 8, "sample_width": 8, "sample_frames": 8,
         "caption_channels": 16},
        TEXT, IMAGE | {"num_frames": 8, "negative_prompt": None, "clean_caption": False},
        scheduler=diffusers.EulerAncestralDiscreteScheduler,
    ),
    "HunyuanDiTPipeline": Case(
        "HunyuanDiT2DModel",
        {"sample_size": 16, "num_layers": 2, "patch_size": 2, "attention_head_dim": 8,
         "num_attention_heads": 3,
         "in_channels": 4, "cross_attention_dim": 16, "cross_attention_dim_t5": 16,
         "pooled_projection_dim": 4,
         "hidden_size": 24, "activation_fn": "gelu-approximate", "text_len": 5, "text_len_t5": 5},
        {f"{sign}prompt_{kind}{which}": shape
         for sign in ("", "negative_") for which in ("", "_2")
         for kind, shape in (("embeds", (BATCH, 5, 16)), ("attention_mask", mask(BATCH, 5)))},
        {"height": 16, "width": 16, "use_resolution_binning": False},
        scheduler=lambda: diffusers.DDPMScheduler(clip_sample=False), parts=lambda: SAFE,
    ),
    "QwenImage21Pipeline": Case(
        "QwenImage21Transformer2DModel",
        {"in_channels": 16, "out_channels": 16, "num_layers": 1, "attention_head_dim": 16,
         "num_attention_heads": 2, "context_in_dim": 16, "axes_dims_rope": (4, 6, 6)},
        PAIR, IMAGE, scale="true_cfg_scale",
        parts=lambda: {"processor": Processor(
            apply_chat_template=lambda *text, **more: [[0]], tokenizer=Processor(encode=lambda text: [0]))},
    ),
    "LongCatImagePipeline": Case(
        "LongCatImageTransformer2DModel",
        {"in_channels": 64, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16,
         "axes_dims_rope": [4, 6, 6]},
        PAIR, IMAGE | {"enable_prompt_rewrite": False},
        settings={"encode_prompt": lambda pipe, prompt_embeds, **more: (prompt_embeds, torch.zeros(5, 3))},
    ),
    "ChronoEditPipeline": changed(
        "WanPipeline", {"image": lambda: PICTURE["image"]()[:1]}, SMALL,
        parts=wan_autoencoder, model="ChronoEditTransformer3DModel",
        settings={"encode_image": lambda pipe, image, device: seeded(pipe, ["a"], 4, 16)},
        config=CASES["WanPipeline"].config | {"in_channels": 12, "image_dim": 16, "added_kv_proj_dim": 24}),
    "Kandinsky5I2IPipeline": replace(
        VARIANTS["Kandinsky5T2IPipeline"], parts=lambda: {"vae": diffusers.AutoencoderKL(
            block_out_channels=(4,) * 4, norm_num_groups=1, latent_channels=4,
            down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)},
        inputs=VARIANTS["Kandinsky5T2IPipeline"].inputs | PICTURE,
        call=SMALL, settings={"resolutions": [(16, 16)]},
        config=VARIANTS["Kandinsky5T2IPipeline"].config | {"visual_cond": True}),
    "Kandinsky5I2VPipeline": replace(
        VARIANTS["Kandinsky5T2IPipeline"], parts=hunyuan_autoencoder,
        inputs=VARIANTS["Kandinsky5T2IPipeline"].inputs | {"image": lambda: PICTURE["image"]()[:1]},
        call=SMALL | {"num_frames": 25}, settings={},
        config=VARIANTS["Kandinsky5T2IPipeline"].config | {"visual_cond": True}),
    "Kandinsky6TI2VAPipeline": Case(
        "Kandinsky6Transformer3DModel",
        {"in_visual_dim": 4, "out_visual_dim": 4, "in_text_dim": 16, "in_text_dim2": 16, "time_dim": 16,
         "model_dim": 16, "ff_dim": 16, "num_text_blocks": 1, "num_visual_blocks": 1, "axes_dims": (2, 2, 4),
         "in_audio_dim": 4, "out_audio_dim": 4},
        {"prompt_embeds": (BATCH, 5, 16), "negative_prompt_embeds": (BATCH, 5, 16),
         "pooled_prompt_embeds": (BATCH, 16), "negative_pooled_prompt_embeds": (BATCH, 16)},
        IMAGE | {"num_frames": 5, "sample_audio": False},
    ),
    "BriaFiboPipeline": Case(
        "BriaFiboTransformer2DModel",
        {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8,
         "num_attention_heads": 2, "joint_attention_dim": 32, "axes_dims_rope": [0, 4, 4],
         "text_encoder_dim": 16},
        {}, {"height": 16, "width": 16, "prompt": ["a", "b"]}, settings={"get_prompt_embeds": fibo_prompt},
        parts=lambda: {"text_encoder": autoencoder(), "vae": diffusers.AutoencoderKLWan(
            base_dim=4, z_dim=16, dim_mult=[1], num_res_blocks=1, temperal_downsample=[])},
    ),
    "BriaFibo2Pipeline": Case(
        "BriaFibo2Transformer2DModel",
        {"in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "cap_feat_dim": 16,
         "injection_layer_ids": (1,), "perceiver_num_layers": 1, "min_num_gist_tokens": 4,
         "max_num_gist_tokens": 8, "gist_step": 2, "gist_min_text_len": 2, "gist_max_text_len": 16,
         "axes_dims": (4, 6, 6), "axes_lens": (64, 64, 64)},
        {"prompt_embeds": (BATCH, 2, 5, 16), "negative_prompt_embeds": (BATCH, 2, 5, 16)}, IMAGE,
    ),
    "LongCatAudioDiTPipeline": Case(
        "LongCatAudioDiTTransformer",
        {"dit_dim": 16, "dit_depth": 1, "dit_heads": 2, "dit_text_dim": 16, "latent_dim": 8,
         "text_conv": False},
        {}, {"prompt": ["a", "b"], "audio_duration_s": 0.01}, settings={"encode_prompt": audio_prompt},
        parts=lambda: {"vae": diffusers.LongCatAudioDiTVae(
            in_channels=1, channels=16, c_mults=[1, 2], strides=[2], latent_dim=8, encoder_latent_dim=16,
            downsampling_ratio=2, sample_rate=4000)},
        scheduler=lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=True),
    ),
    "StableAudioPipeline": Case(
        "StableAudioDiTModel",
        {"sample_size": 8, "in_channels": 4, "num_layers": 1, "attention_head_dim": 4,
         "num_attention_heads": 2, "num_key_value_attention_heads": 2, "out_channels": 4,
         "cross_attention_dim": 16, "time_proj_dim": 8, "global_states_input_dim": 32,
         "cross_attention_input_dim": 16},
        PAIR | {"attention_mask": mask(BATCH, 5), "negative_attention_mask": mask(BATCH, 5)},
        {"return_dict": True},
        scheduler=lambda: diffusers.EDMDPMSolverMultistepScheduler(prediction_type="v_prediction",
        sigma_data=1.0),
        parts=lambda: {
            "vae": diffusers.AutoencoderOobleck(
                encoder_hidden_size=4, downsampling_ratios=[1, 2], decoder_channels=4,
                decoder_input_channels=4,
                audio_channels=2, channel_multiples=[1, 2], sampling_rate=8),
            "projection_model": diffusers.StableAudioProjectionModel(
                text_encoder_dim=16, conditioning_dim=16, min_value=0, max_value=32)},
    ),
    "Kandinsky5T2VPipeline": replace(VARIANTS["Kandinsky5T2IPipeline"], call=IMAGE | {"num_frames": 5}),
    "NucleusMoEImagePipeline": Case(
        "NucleusMoEImageTransformer2DModel",
        {"in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 16, "axes_dims_rope": (4, 6, 6),
         "moe_enabled": False,
         "capacity_factors": [8.0]},
        PAIR | {"prompt_embeds_mask": mask(BATCH, 5), "negative_prompt_embeds_mask": mask(BATCH, 5)}, IMAGE,
    ),
}
FURTHER: dict[str, Case] = {
    "HunyuanDiTPAGPipeline": replace(
        TRANSFORMERS["HunyuanDiTPipeline"], parts=lambda: SAFE | layers("blocks.0"),
        call=TRANSFORMERS["HunyuanDiTPipeline"].call | PERTURBED),
    "BriaFiboEditPipeline": replace(
        TRANSFORMERS["BriaFiboPipeline"],
        call={"height": 16, "width": 16, "prompt": ['{"edit_instruction": "a"}',
        '{"edit_instruction": "b"}'], "_auto_resize": False},
        inputs={"image": lambda: Image.new("RGB", (16, 16), "teal")}),
    "ZImageOmniPipeline": changed(
        "ZImagePipeline", {"prompt_embeds": [[(5, 16)]] * BATCH, "negative_prompt_embeds": [[(5,
        16)]] * BATCH}, {}),
    "LongCatImageEditPipeline": replace(
        TRANSFORMERS["LongCatImagePipeline"], call={},
        inputs=PAIR | {"image": lambda: Image.new("RGB", (16, 16), "teal")},
        parts=lambda: {"text_processor": Processor(image_processor=None), "vae": diffusers.AutoencoderKL(
            block_out_channels=(1,) * 7, norm_num_groups=1, latent_channels=16, shift_factor=0.0,
            down_block_types=["DownEncoderBlock2D"] * 7, up_block_types=["UpDecoderBlock2D"] * 7)},
    ),
}
# fmt: on

OTHERS = TRANSFORMERS | FURTHER
