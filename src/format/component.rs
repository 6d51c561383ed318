//! Which part of a pipeline a tensor belongs to, by the prefixes that the tools of this field write.

/// A part of a diffusion checkpoint that is used, and so kept, on its own.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    DiffusionModel,
    TextEncoder,
    Vae,
    Other,
}

/// Full checkpoints, then single-part files, then LoRA files. No prefix starts another of a different component.
const PREFIXES: [(&str, Component); 35] = [
    ("model.diffusion_model.", Component::DiffusionModel),
    ("model_ema.", Component::DiffusionModel),
    ("diffusion_model.", Component::DiffusionModel),
    ("unet.", Component::DiffusionModel),
    ("transformer.transformer_blocks.", Component::DiffusionModel),
    ("transformer.single_transformer_blocks.", Component::DiffusionModel),
    ("transformer_blocks.", Component::DiffusionModel),
    ("single_transformer_blocks.", Component::DiffusionModel),
    ("double_blocks.", Component::DiffusionModel),
    ("single_blocks.", Component::DiffusionModel),
    ("joint_blocks.", Component::DiffusionModel),
    ("input_blocks.", Component::DiffusionModel),
    ("middle_block.", Component::DiffusionModel),
    ("output_blocks.", Component::DiffusionModel),
    ("lora_unet_", Component::DiffusionModel),
    ("lora_transformer_", Component::DiffusionModel),
    ("cond_stage_model.", Component::TextEncoder),
    ("conditioner.", Component::TextEncoder),
    ("text_encoders.", Component::TextEncoder),
    ("text_encoder", Component::TextEncoder),
    ("text_model.", Component::TextEncoder),
    ("encoder.block.", Component::TextEncoder),
    ("clip_l.", Component::TextEncoder),
    ("clip_g.", Component::TextEncoder),
    ("t5xxl.", Component::TextEncoder),
    ("lora_te", Component::TextEncoder),
    ("first_stage_model.", Component::Vae),
    ("vae.", Component::Vae),
    ("quant_conv.", Component::Vae),
    ("post_quant_conv.", Component::Vae),
    ("encoder.down", Component::Vae),
    ("encoder.mid", Component::Vae),
    ("decoder.up", Component::Vae),
    ("decoder.mid", Component::Vae),
    ("decoder.conv_", Component::Vae),
];

/// The component that a tensor of this name belongs to.
pub fn component(name: &str) -> Component {
    PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(Component::Other, |(_, component)| *component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_known_checkpoints_are_told_apart() {
        let cases = [
            ("model.diffusion_model.input_blocks.0.0.weight", Component::DiffusionModel),
            ("double_blocks.0.img_attn.qkv.weight", Component::DiffusionModel),
            ("conditioner.embedders.0.transformer.text_model.final_layer_norm.bias", Component::TextEncoder),
            ("text_encoders.clip_l.transformer.text_model.embeddings.position_ids", Component::TextEncoder),
            ("text_encoder_2.encoder.block.0.layer.0.SelfAttention.q.weight", Component::TextEncoder),
            ("first_stage_model.decoder.conv_in.weight", Component::Vae),
            ("vae.encoder.conv_in.weight", Component::Vae),
            ("encoder.down_blocks.0.resnets.0.conv1.weight", Component::Vae),
            ("lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha", Component::TextEncoder),
            ("model.layers.0.self_attn.q_proj.weight", Component::Other),
            ("transformer.h.0.attn.c_attn.weight", Component::Other),
            ("", Component::Other),
        ];
        for (name, expected) in cases {
            assert_eq!(component(name), expected, "{name}");
        }
    }

    #[test]
    fn the_order_of_the_prefixes_does_not_matter() {
        for (a, component_a) in PREFIXES {
            for (b, component_b) in PREFIXES {
                assert!(component_a == component_b || !b.starts_with(a), "{a} and {b}");
            }
        }
    }
}
