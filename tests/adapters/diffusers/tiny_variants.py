"""Variants of the pipelines in `tiny_models`: from pictures and videos, inpainted, controlled, perturbed."""

from dataclasses import replace

import diffusers
import torch
from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import StableUnCLIPImageNormalizer
from PIL import Image
from tiny_models import (
    BATCH,
    CASES,
    COG_VAE,
    COGVIDEO,
    CONTROL,
    FIRST,
    HOLE,
    HUNYUAN_VAE,
    PAIR,
    PICTURE,
    QWEN_VAE,
    SANA_VAE,
    SMALL,
    STRENGTH,
    TEXT,
    UNET,
    VAE,
    VIDEO,
    WAN_VAE,
    Case,
    Processor,
    Words,
    cog_scheduler,
    deep,
    kl,
    looked_at,
    one,
    seeded,
    teal,
    words,
)

SD, XL, SD3, KOLORS = (f"{name}Pipeline" for name in (
    "StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Kolors"))  # fmt: skip
FLUX, CHROMA, QWEN, Z, DIT = (f"{name}Pipeline" for name in (
    "Flux", "Chroma", "QwenImage", "ZImage", "HunyuanDiT"))  # fmt: skip
WAN, COG, K5, ANIMATE = (f"{name}Pipeline" for name in ("Wan", "CogVideoX", "Kandinsky5T2I", "AnimateDiff"))
PERTURBED = {"pag_scale": 2.0}
FRAMES = {"height": 16, "width": 16, "num_frames": 5}
MOVING = {"height": 16, "width": 16, "num_frames": BATCH}
COGS = SMALL | {"max_sequence_length": 5}
LOOKING = {"in_channels": 12, "image_dim": 16, "added_kv_proj_dim": 24}
REVERSED = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}  # fmt: skip
PROJECTED = {"class_embed_type": "projection", "projection_class_embeddings_input_dim": 32}
NOISED = {"image_normalizer": (StableUnCLIPImageNormalizer, {"embedding_dim": 16}),
          "image_noising_scheduler": diffusers.DDPMScheduler}  # fmt: skip
EASY = "EasyAnimatePipeline"


def derive(base, inputs, call, *, config=None, parts=None, **more):
    """A case with further inputs, arguments, numbers of its model and components."""
    case = CASES[base]
    return replace(
        case, inputs=case.inputs | inputs, call=case.call | call, config=case.config | (config or {}),
        parts=case.parts | (parts or {}), **more,
    )  # fmt: skip


def network(kind, base, **more):
    """A control network beside the denoiser of a pipeline."""
    return {"controlnet": (kind, CASES[base].config | more)}


def family(base, kinds, control=None, layer="", vae=VAE, **more):
    """The variants of a pipeline whose names say what they take."""
    found = {}
    for kind in kinds.split():
        inputs = {}
        call = {}
        parts = {}
        if "Control" in kind:
            inputs, call, parts = PICTURE | CONTROL, SMALL, vae | (control or {})
        if "Img2Img" in kind or "Inpaint" in kind:
            inputs = inputs | (PICTURE if "Img2Img" in kind else HOLE)
            call, parts = SMALL | STRENGTH, vae | parts
        if "PAG" in kind:
            call, parts = call | PERTURBED, parts | {"pag_applied_layers": [layer]}
        found[base.replace("Pipeline", f"{kind}Pipeline")] = derive(base, inputs, call, parts=parts, **more)
    return found


def frames():
    """A video for each sample; with a control network, only as many frames as samples pass its check."""
    return list(torch.rand(BATCH, BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(5)))


def channels_first():
    return VIDEO["video"]().transpose(1, 2)


def prior_prompt(pipe, prompt, do_classifier_free_guidance, **more):
    texts = [""] * len(prompt) + prompt if do_classifier_free_guidance else prompt
    return seeded(pipe, texts, 16), seeded(pipe, texts, 5, 16), torch.ones(len(texts), 5, dtype=torch.bool)


def text_prompt(pipe, prompt, **more):
    return seeded(pipe, prompt, 5, 16), seeded(pipe, [""] * len(prompt), 5, 16)


def kolors_prompt(pipe, prompt, **more):
    empty = [""] * len(prompt)
    return *text_prompt(pipe, prompt), seeded(pipe, prompt, 16), seeded(pipe, empty, 16)


def easy_prompt(pipe, prompt_embeds, **given):
    masks = given["prompt_attention_mask"], given["negative_prompt_attention_mask"]
    return prompt_embeds, given["negative_prompt_embeds"], *masks


def pictured(pipe, image, device, number, guided):
    found = seeded(pipe, ["a", "b"], 1, 16)
    return torch.cat([torch.zeros_like(found), found]) if guided else found


def small_latents(pipe, image, generator):
    """Latents of pictures that Qwen-Image enlarges to a million pixels: one for each 64 x 64 of them."""
    small = torch.nn.functional.avg_pool2d(image.flatten(0, 1).float(), 64)
    found = small.reshape(image.shape[0], -1, 1, *small.shape[-2:])
    return torch.cat([found, found[:, :1]], dim=1).to(pipe.transformer.dtype)


def edited(inputs, call, **more):
    """A case of a Qwen-Image pipeline that edits a picture, on a grid of 8 x 8 tokens."""
    settings = {"vae_scale_factor": 64, "latent_channels": 4, "_encode_vae_image": small_latents}
    case = derive(
        QWEN, {"image": teal} | inputs, {}, parts=QWEN_VAE | {"text_encoder": Words},
        settings=settings | more.pop("settings", {}), **more,
    )  # fmt: skip
    return replace(case, call=call)


# fmt: off
CONTROLNET = {base: network("ControlNetModel", base, conditioning_embedding_out_channels=(4,))
              for base in (SD, XL)}
UNION = network("ControlNetUnionModel", XL, conditioning_embedding_out_channels=(4,), num_trans_channel=4,
                num_trans_head=2, num_trans_layer=1, num_proj_channel=4, num_control_type=2)
SPARSE = {"controlnet": ("SparseControlNetModel", UNET | {
    "down_block_types": ("DownBlockMotion", "CrossAttnDownBlockMotion"), "motion_num_attention_heads": 2,
    "conditioning_channels": 3, "conditioning_embedding_out_channels": (4,),
    "use_simplified_condition_embedding": False})}
ADAPTER = {"adapter": ("T2IAdapter", {"channels": [4, 8], "num_res_blocks": 1, "downscale_factor": 1})}
Z_CONTROL = {"control_layers_places": [0], "control_refiner_layers_places": [0], "control_in_dim": 4,
             "add_control_noise_refiner": "control_noise_refiner", "dim": 32, "n_refiner_layers": 1,
             "n_heads": 2, "n_kv_heads": 2}
VARIANTS = {
    **family(SD3, "Img2Img PAG PAGImg2Img ControlNet", network("SD3ControlNetModel", SD3), "blocks.0"),
    **family(SD3, "Inpaint", vae={"vae": kl(latent_channels=16, shift_factor=0.0)},
             config={"in_channels": 16, "out_channels": 16}),
    "StableDiffusion3ControlNetInpaintingPipeline": derive(
        SD3, CONTROL | {"control_mask": HOLE["mask_image"]}, SMALL,
        parts=VAE | network("SD3ControlNetModel", SD3, extra_conditioning_channels=1)),
    **family(FLUX, "Img2Img Inpaint ControlNet", network("FluxControlNetModel", FLUX)),
    "FluxKontextPipeline": derive(
        FLUX, PICTURE, SMALL | {"max_area": 256, "_auto_resize": False}, parts=VAE),
    "FluxKontextInpaintPipeline": derive(
        FLUX, HOLE, SMALL | STRENGTH | {"max_area": 256, "_auto_resize": False}, parts=VAE),
    "Flux2KleinInpaintPipeline": derive("Flux2KleinPipeline", HOLE, STRENGTH),
    **family(CHROMA, "Img2Img"),
    **family(CHROMA, "Inpaint", config={"guidance_embeds": False}),  # read from the checkpoint
    **family(QWEN, "Img2Img Inpaint ControlNet", network("QwenImageControlNetModel", QWEN), vae=QWEN_VAE),
    "QwenImageControlNetInpaintPipeline": derive(
        QWEN, CONTROL | {"control_mask": HOLE["mask_image"]}, SMALL,
        parts=QWEN_VAE | network("QwenImageControlNetModel", QWEN, extra_condition_channels=4)),
    "QwenImageEditPipeline": edited({}, {}),
    "QwenImageEditPlusPipeline": edited(one(CASES[QWEN].inputs), {}),
    "QwenImageEditInpaintPipeline": edited({"mask_image": lambda: Image.new("L", (16, 16), 255)}, STRENGTH),
    "QwenImageLayeredPipeline": edited(
        {}, {"layers": 1, "output_type": "pt"}, config={"use_additional_t_cond": True},
        settings={"get_image_caption": lambda pipe, image, **more: ["a", "b"]}),
    **family(Z, "Img2Img Inpaint ControlNet", {"controlnet": ("ZImageControlNetModel", Z_CONTROL)}),
    "ZImageControlNetInpaintPipeline": derive(
        Z, HOLE | CONTROL, SMALL,
        parts=VAE | {"controlnet": ("ZImageControlNetModel", Z_CONTROL | {"control_in_dim": 9})}),
    "ZImageOmniPipeline": derive(
        Z, {name: [[(5, 16)]] * BATCH for name in ("prompt_embeds", "negative_prompt_embeds")}, {}),
    **family(SD, "Img2Img Inpaint ControlNet ControlNetImg2Img ControlNetInpaint PAG PAGImg2Img PAGInpaint "
             "ControlNetPAG ControlNetPAGInpaint", CONTROLNET[SD], "mid"),
    **family(XL, "Img2Img Inpaint ControlNet ControlNetImg2Img ControlNetInpaint PAG PAGImg2Img PAGInpaint "
             "ControlNetPAG ControlNetPAGImg2Img", CONTROLNET[XL], "mid"),
    **{name: replace(case, call=case.call | {"control_mode": 0}) for name, case in family(
        XL, "ControlNetUnion ControlNetUnionImg2Img ControlNetUnionInpaint", UNION).items()},
    **family(KOLORS, "PAG", layer="mid"),
    "KolorsImg2ImgPipeline": replace(
        derive(KOLORS, {}, SMALL | STRENGTH | {"prompt": ["a", "b"]}, parts=VAE), inputs=PICTURE,
        settings={"encode_prompt": kolors_prompt}),
    **family("SanaPipeline", "PAG", layer="transformer_blocks.0"),
    "SanaControlNetPipeline": derive(
        "SanaPipeline", CONTROL, {"height": 32, "width": 32},
        parts=SANA_VAE | network("SanaControlNetModel", "SanaPipeline")),
    **family("PixArtSigmaPipeline", "PAG", layer="blocks.0"),
    **family(DIT, "PAG ControlNet", network("HunyuanDiT2DControlNetModel", DIT, transformer_num_layers=2),
             "blocks.0"),
    **family("CogView4Pipeline", "Control", config={"in_channels": 8}),
    "StableDiffusionAdapterPipeline": derive(SD, PICTURE, SMALL, config=REVERSED, parts=VAE | ADAPTER),
    "StableDiffusionXLAdapterPipeline": derive(
        XL, PICTURE, SMALL, config=REVERSED, std=0.6, parts=VAE | ADAPTER),
    "StableDiffusionDepth2ImgPipeline": derive(
        SD, PICTURE | {"depth_map": (BATCH, 16, 16)}, STRENGTH, config={"in_channels": 5}, parts=VAE),
    "StableDiffusionUpscalePipeline": derive(
        SD, {"image": lambda: PICTURE["image"]()[:, :, :8, :8]}, {"noise_level": 20},
        config={"in_channels": 7, "num_class_embeds": 1000},
        parts=VAE | {"low_res_scheduler": diffusers.DDPMScheduler}),
    "StableDiffusionImageVariationPipeline": derive(
        SD, PICTURE, SMALL, parts=VAE, settings={"_encode_image": pictured}),
    "StableUnCLIPPipeline": replace(
        derive(SD, {}, {"prompt": ["a", "b"], "prior_num_inference_steps": 2}, config=PROJECTED,
               parts=NOISED | {
            "prior": ("PriorTransformer", {"num_attention_heads": 2, "attention_head_dim": 8,
                                           "embedding_dim": 16, "num_layers": 1, "num_embeddings": 5}),
            "prior_scheduler": lambda: diffusers.UnCLIPScheduler(
                prediction_type="sample", num_train_timesteps=1000)}),
        inputs={}, settings={"_encode_prior_prompt": prior_prompt, "encode_prompt": text_prompt}),
    "StableUnCLIPImg2ImgPipeline": derive(
        SD, {"image_embeds": (BATCH, 16)}, {}, config=PROJECTED, parts=NOISED | {"image_encoder": kl()}),
    "LDMTextToImagePipeline": derive(
        SD, {}, {"prompt": ["a", "b"], "output_type": "pt"},
        parts={"vqvae": kl(), "bert": Words, "tokenizer": lambda: words}),
    "AnimateDiffPAGPipeline": derive(
        ANIMATE, {}, MOVING | PERTURBED, parts=VAE | {"pag_applied_layers": ["mid_block.*attn1"]}),
    "AnimateDiffSDXLPipeline": derive(
        ANIMATE, CASES[XL].inputs, MOVING, parts=VAE,
        config={k: v for k, v in CASES[XL].config.items() if k not in UNET}),
    "AnimateDiffControlNetPipeline": derive(
        ANIMATE, {"conditioning_frames": frames}, MOVING, parts=VAE | CONTROLNET[SD]),
    "AnimateDiffSparseControlNetPipeline": derive(
        ANIMATE, {"conditioning_frames": FIRST["image"]}, MOVING, parts=VAE | SPARSE),
    "AnimateDiffVideoToVideoPipeline": derive(ANIMATE, {"video": frames}, SMALL | STRENGTH, parts=VAE),
    "AnimateDiffVideoToVideoControlNetPipeline": derive(
        ANIMATE, {"video": frames, "conditioning_frames": frames}, SMALL | STRENGTH,
        parts=VAE | CONTROLNET[SD]),
    "Kandinsky3Img2ImgPipeline": derive(
        "Kandinsky3Pipeline", PICTURE, STRENGTH,
        parts={"movq": ("VQModel", deep(4) | {
            "block_out_channels": (4,) * 4, "latent_channels": 4, "num_vq_embeddings": 4,
            "norm_num_groups": 1})}),
    "Kandinsky5T2VPipeline": derive(K5, {}, {"num_frames": 5}),
    "Kandinsky5I2IPipeline": derive(
        K5, PICTURE, SMALL, settings={"resolutions": [(16, 16)]}, config={"visual_cond": True},
        parts={"vae": kl(latent_channels=4, **deep(4) | {"block_out_channels": (4,) * 4})}),
    "Kandinsky5I2VPipeline": derive(
        K5, FIRST, SMALL | {"num_frames": 25}, settings={}, config={"visual_cond": True}, parts=HUNYUAN_VAE),
    "CogVideoXImageToVideoPipeline": derive(COG, PICTURE, COGS, config={"in_channels": 8}, parts=COG_VAE),
    "CogVideoXVideoToVideoPipeline": derive(COG, VIDEO, COGS | STRENGTH, parts=COG_VAE),
    "CogVideoXFunControlPipeline": derive(
        COG, {"control_video": VIDEO["video"]}, COGS, config={"in_channels": 8}, parts=COG_VAE),
    "ConsisIDPipeline": Case(
        "ConsisIDTransformer3DModel",
        COGVIDEO | {"in_channels": 8, "attention_head_dim": 16, "sample_width": 2, "sample_height": 2,
                    "use_rotary_positional_embeddings": True,
                    "use_learned_positional_embeddings": True, "cross_attn_interval": 1,
                    "is_train_face": True, "cross_attn_dim_head": 1, "cross_attn_num_heads": 1,
                    "LFE_id_dim": 2, "LFE_vit_dim": 2, "LFE_depth": 5, "LFE_dim_head": 8, "LFE_num_heads": 2,
                    "LFE_num_id_token": 1, "LFE_num_querie": 1, "LFE_output_dim": 21, "LFE_ff_mult": 1,
                    "LFE_num_scale": 1},
        PAIR | PICTURE | {"id_vit_hidden": [(1, 2, 2)], "id_cond": (1, 2)},
        FRAMES | {"max_sequence_length": 5}, parts=COG_VAE, needs="cv2", scheduler=cog_scheduler),
    "WanVideoToVideoPipeline": derive(WAN, VIDEO, SMALL | STRENGTH, parts=WAN_VAE),
    "WanImageToVideoPipeline": derive(WAN, FIRST, SMALL, parts=WAN_VAE, config={"in_channels": 12}),
    "WanVACEPipeline": derive(
        WAN, one(PAIR), SMALL, model="WanVACETransformer3DModel", parts=WAN_VAE,
        config={"vace_layers": [0], "vace_in_channels": 4 * 2 + 64}),
    "LucyEditPipeline": derive(WAN, VIDEO, SMALL, parts=WAN_VAE, full=("vae",), config={"in_channels": 8}),
    "ChronoEditPipeline": derive(
        WAN, FIRST, SMALL, parts=WAN_VAE, model="ChronoEditTransformer3DModel", config=LOOKING,
        settings={"encode_image": looked_at}),
    "SkyReelsV2ImageToVideoPipeline": derive(
        "SkyReelsV2Pipeline", FIRST, SMALL, parts=WAN_VAE, config=LOOKING,
        settings={"encode_image": looked_at}),
    "HunyuanVideoImageToVideoPipeline": derive(
        "HunyuanVideoPipeline", PICTURE, SMALL, parts=HUNYUAN_VAE,
        config={"guidance_embeds": False, "image_condition_type": "token_replace", "patch_size": 1}),
    "HunyuanSkyreelsImageToVideoPipeline": derive(
        "HunyuanVideoPipeline", PICTURE, SMALL, config={"in_channels": 8, "patch_size": 1},
        parts=HUNYUAN_VAE),
    "HunyuanVideoFramepackPipeline": derive(
        "HunyuanVideoPipeline", PICTURE, SMALL | {"latent_window_size": 2}, parts=HUNYUAN_VAE,
        model="HunyuanVideoFramepackTransformer3DModel", settings={"encode_image": looked_at},
        config={"has_image_proj": True, "image_proj_dim": 16, "has_clean_x_embedder": True,
                "image_condition_type": None}),
    "HunyuanVideo15ImageToVideoPipeline": derive(
        "HunyuanVideo15Pipeline", {"image": teal}, {}, settings={"encode_image": looked_at},
        config={"task_type": "i2v", "image_embed_dim": 16}),
    "MotifVideoImage2VideoPipeline": derive(
        "MotifVideoPipeline", one(TEXT) | {"image": teal}, {"prompt": None}),
    "EasyAnimateControlPipeline": derive(
        EASY, {"control_video": channels_first}, {}, config={"in_channels": 12},
        settings={"encode_prompt": easy_prompt}),
    "EasyAnimateInpaintPipeline": derive(
        EASY, {"video": channels_first, "mask_video": lambda: (channels_first()[:, :1] > 0.5).float()}, {},
        config={"in_channels": 9}),
    "BriaFiboEditPipeline": derive(
        "BriaFiboPipeline", {"image": teal},
        {"prompt": [f'{{"edit_instruction": "{text}"}}' for text in "ab"], "_auto_resize": False}),
    "LongCatImageEditPipeline": derive(
        "LongCatImagePipeline", {"image": teal}, {},
        parts={"text_processor": Processor(image_processor=None), "vae": kl(
            latent_channels=16, shift_factor=0.0, **deep(7) | {"block_out_channels": (1,) * 7})}),
}
# fmt: on
