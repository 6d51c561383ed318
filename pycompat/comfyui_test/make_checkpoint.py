"""Makes a checkpoint of the Stable Diffusion 1.5 family that ComfyUI detects and runs: small, with random weights.

usage: make_checkpoint.py COMFYUI OUT.safetensors SEED
"""

from __future__ import annotations

import json
import os
import sys


def main(root: str, out: str, seed: int) -> None:
    sys.argv = [sys.argv[0], "--cpu"]
    sys.path.insert(0, root)
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ops
    import torch
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from safetensors.torch import save_file
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(seed)
    unet = UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, num_res_blocks=[1, 1], channel_mult=[1, 2],
        transformer_depth=[1, 1], transformer_depth_output=[1, 1, 1, 1], transformer_depth_middle=1, num_heads=8,
        num_head_channels=-1, use_spatial_transformer=True, context_dim=768, use_linear_in_transformer=False,
        legacy=False, dtype=torch.float32, operations=comfy.ops.disable_weight_init,
    )  # fmt: skip
    vae = AutoencoderKL(embed_dim=4, ddconfig={
        "double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
    })  # fmt: skip
    for module in (unet, vae):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    with open(os.path.join(root, "comfy", "sd1_clip_config.json")) as file:
        config = json.load(file)
    about_itself = ("architectures", "_name_or_path", "model_type", "torch_dtype", "transformers_version")
    clip = CLIPTextModel(CLIPTextConfig(**{key: value for key, value in config.items() if key not in about_itself}))
    weights = {f"model.diffusion_model.{name}": value for name, value in unet.state_dict().items()}
    weights |= {f"first_stage_model.{name}": value for name, value in vae.state_dict().items()}
    for name, value in clip.state_dict().items():
        if not name.endswith("position_ids"):
            name = name if name.startswith("text_model.") else f"text_model.{name}"
            weights[f"cond_stage_model.transformer.{name}"] = value
    save_file({name: value.detach().half().contiguous() for name, value in weights.items()}, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
