//! The part of a plan that is gated DeltaNet, and the gates of attention.

use super::{Activation, Buffer, Builder, Dispatch, PlanError, State, Work, act, state};
use crate::{
    models::{GatedDeltaNet, Tensor},
    role::Role,
    variants::{HEAD_THREADS, WIDE_THREADS},
};

impl Builder<'_> {
    /// From the norm to the output projection.
    pub(super) fn delta_net(&mut self, layer: usize) -> Result<(), PlanError> {
        let net = self.spec.delta_net.expect("the layer has a state");
        let (proj, normed) = (Activation::GdnProj, Activation::GdnNormed);
        self.matmul(Some(layer), Tensor::GdnProj, Activation::Normed, proj)?;
        if self.in_chunks {
            self.gdn_conv(layer, &net, Role::GdnConvSeq)?;
            self.gdn_conv_commit(layer, &net)?;
        } else {
            self.gdn_conv(layer, &net, Role::GdnConv)?;
        }
        self.gdn_gates(layer, &net)?;
        self.gdn_recur(layer, &net)?;
        self.gdn_norm_out(layer, &net)?;
        self.matmul(Some(layer), Tensor::GdnOut, normed, Activation::Delta)
    }

    /// The convolution: of one token, which also stores it in the ring, or of a chunk.
    fn gdn_conv(&mut self, layer: usize, net: &GatedDeltaNet, role: Role) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gdn_conv");
        let buffers = vec![
            act(Activation::GdnConv),
            act(Activation::GdnProj),
            Buffer::GdnRing { layer },
            Self::vector(Some(layer), Tensor::GdnConv),
            state(State::PositionMap),
        ];
        self.per_element(label, role, buffers, net.conv_dim())
    }

    fn gdn_conv_commit(&mut self, layer: usize, net: &GatedDeltaNet) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gdn_conv_commit");
        let variant = self.base(Role::GdnConvCommit, &label)?;
        // Every slot of the ring once, however many tokens there are.
        let groups = (net.ring_len() * net.conv_dim()).div_ceil(WIDE_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::GdnProj),
                Buffer::GdnRing { layer },
                state(State::PositionMap),
            ],
            uniform: vec![self.tokens as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn gdn_gates(&mut self, layer: usize, net: &GatedDeltaNet) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gdn_gates");
        let variant = self.base(Role::GdnGates, &label)?;
        let groups = (self.tokens * net.linear_num_value_heads).div_ceil(HEAD_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::GdnGates),
                act(Activation::GdnProj),
                Self::vector(Some(layer), Tensor::GdnALog),
                Self::vector(Some(layer), Tensor::GdnDtBias),
            ],
            uniform: vec![self.tokens as u32, net.proj_dim() as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn gdn_recur(&mut self, layer: usize, net: &GatedDeltaNet) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gdn_recur");
        let variant = self.base(Role::GdnRecur, &label)?;
        let groups = net.linear_num_value_heads;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::GdnRecur),
                act(Activation::GdnConv),
                act(Activation::GdnGates),
                Buffer::GdnState { layer },
                state(State::PositionMap),
            ],
            uniform: vec![self.tokens as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    fn gdn_norm_out(&mut self, layer: usize, net: &GatedDeltaNet) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gdn_norm_out");
        let variant = self.base(Role::GdnNormOut, &label)?;
        let groups = self.tokens * net.linear_num_value_heads;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: vec![
                act(Activation::GdnNormed),
                act(Activation::GdnRecur),
                Self::vector(Some(layer), Tensor::GdnNorm),
                act(Activation::GdnProj),
            ],
            uniform: vec![self.tokens as u32, net.proj_dim() as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }

    /// Queries and their gates, which one projection gives by head, apart.
    pub(super) fn gated_qkv_split(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.gated_qkv_split");
        let outputs = [Activation::Qkv, Activation::Gate, Activation::CAttn];
        let elements = self.spec.c_attn_dim();
        self.per_element(
            label,
            Role::GatedQkvSplit,
            outputs.map(act).to_vec(),
            elements,
        )
    }

    pub(super) fn attn_gate(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.attn_gate");
        let buffers = [Activation::Attention, Activation::Gate].map(act).to_vec();
        self.per_element(label, Role::AttnGate, buffers, self.spec.q_dim())
    }

    /// One invocation for each of the `elements` of a token.
    fn per_element(
        &mut self,
        label: String,
        role: Role,
        buffers: Vec<Buffer>,
        elements: usize,
    ) -> Result<(), PlanError> {
        let variant = self.base(role, &label)?;
        let groups = (self.tokens * elements).div_ceil(WIDE_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers,
            uniform: vec![self.tokens as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }
}
