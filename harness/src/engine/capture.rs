//! One dispatch at a time with its operands read back, for the checks.

use super::{
    Engine, Program,
    buffers::{POISON, floats, read_guarded},
    kept::Cache,
};
use anyhow::{Result, bail};
use kernels::{
    Dispatch, Plan,
    plan::{Activation, Buffer, activation_len},
    role::{Access, Binding},
};
use reference::{numerics::widen, roles::kv_quantize_int8::Pages};
use std::collections::BTreeMap;

/// Operands of one dispatch: inputs before it, outputs after it, in f64.
#[derive(Debug)]
pub struct Captured<'p> {
    /// The dispatch.
    pub dispatch: &'p Dispatch,
    /// Activations by name.
    pub activations: BTreeMap<Activation, Vec<f64>>,
    /// What the activations held that the dispatch changes in place.
    pub replaced: BTreeMap<Activation, Vec<f64>>,
    /// The layer's pages before and after, where it is bound.
    pub kv: Option<[Vec<f32>; 2]>,
    /// The same of int8 pages.
    pub kv_int8: Option<[Pages; 2]>,
    /// Ring and state of the layer before and after, where one of them is bound.
    pub remembered: Option<[[Vec<f32>; 2]; 2]>,
}

/// Selects every dispatch.
pub const fn every(_: &Dispatch) -> bool {
    true
}

impl Engine<'_> {
    /// Runs the tokens of a program, the first of them at `position`, dispatch by
    /// dispatch. Before each that `select` takes, its
    /// outputs are filled with NaN, save what it changes in place; after it, the
    /// guard words behind them and the rows past its last must be intact. The others
    /// only run.
    ///
    /// # Errors
    /// A device error, a touched guard, or what `visit` returns.
    pub fn run_captured<'p>(
        &self,
        program: &'p Program,
        position: usize,
        select: impl Fn(&Dispatch) -> bool,
        mut visit: impl FnMut(Captured<'p>) -> Result<()>,
    ) -> Result<()> {
        let tokens = program.plan.phase.tokens();
        let elem = program.plan.elem;
        self.memory.require(position + tokens)?;
        let mut kept = self.memory.kept.borrow_mut();
        kept.overwrite(Cache::of(&program.plan), position);
        drop(kept);
        self.enter(&program.plan, position)?;
        let mut encoder = self.encoder();
        self.memory.advance(&mut encoder, position, tokens);
        self.gpu.run("advancing the position", encoder)?;
        for (i, dispatch) in program.plan.dispatches.iter().enumerate() {
            if !select(dispatch) {
                let mut encoder = self.encoder();
                program.record(&mut encoder, Some(i));
                self.gpu.run(&dispatch.label, encoder)?;
                continue;
            }
            let storage = dispatch.variant.storage_bindings();
            let bound: Vec<(Buffer, &Binding)> =
                dispatch.buffers.iter().copied().zip(storage).collect();
            let layer_of = |kind: fn(Buffer) -> Option<usize>| {
                bound.iter().find_map(|&(buffer, _)| kind(buffer))
            };
            let layer = layer_of(|buffer| {
                if let Buffer::KvPages { layer } = buffer {
                    Some(layer)
                } else {
                    None
                }
            });
            let int8_layer = layer_of(|buffer| {
                if let Buffer::KvCodes { layer } = buffer {
                    Some(layer)
                } else {
                    None
                }
            });
            let state_layer = layer_of(|buffer| {
                if let Buffer::GdnRing { layer } | Buffer::GdnState { layer } = buffer {
                    Some(layer)
                } else {
                    None
                }
            });
            let pages = || -> Result<_> {
                let plain = layer.map(|l| self.memory.read_kv(self.gpu, l, elem));
                let int8 = int8_layer.map(|l| self.memory.read_kv_int8(self.gpu, l));
                let state = state_layer.map(|l| self.memory.read_recurrent(self.gpu, l, elem));
                Ok((plain.transpose()?, int8.transpose()?, state.transpose()?))
            };
            let before = pages()?;
            let mut replaced = BTreeMap::new();
            for &(buffer, binding) in &bound {
                let Buffer::Activation(activation) = buffer else {
                    continue;
                };
                if binding.in_place {
                    let held =
                        self.read_activation(&dispatch.label, activation, &program.plan, false)?;
                    replaced.insert(activation, held);
                } else if binding.access == Access::ReadWrite && !dispatch.continues() {
                    let poison = vec![POISON; self.memory.bytes(buffer, elem) as usize];
                    self.gpu
                        .queue
                        .write_buffer(self.memory.buffer(buffer, elem), 0, &poison);
                }
            }
            let mut encoder = self.encoder();
            program.record(&mut encoder, Some(i));
            self.gpu.run(&dispatch.label, encoder)?;
            let mut activations = BTreeMap::new();
            for &(buffer, binding) in &bound {
                if let Buffer::Activation(activation) = buffer {
                    let output = binding.access == Access::ReadWrite && !binding.in_place;
                    let plan = &program.plan;
                    let held = self.read_activation(&dispatch.label, activation, plan, output)?;
                    activations.insert(activation, held);
                }
            }
            let after = pages()?;
            visit(Captured {
                dispatch,
                activations,
                replaced,
                kv: before.0.zip(after.0).map(<[_; 2]>::from),
                kv_int8: before.1.zip(after.1).map(<[_; 2]>::from),
                remembered: before.2.zip(after.2).map(<[_; 2]>::from),
            })?;
        }
        Ok(())
    }

    pub(super) fn read_activation(
        &self,
        label: &str,
        activation: Activation,
        plan: &Plan,
        output: bool,
    ) -> Result<Vec<f64>> {
        let name = Buffer::Activation(activation);
        let what = format!("{label}: {activation:?}");
        let elem = activation.elem(plan.elem);
        let buffer = self.memory.buffer(name, plan.elem);
        let bytes = self.memory.bytes(name, plan.elem);
        let data = read_guarded(self.gpu, &what, buffer, bytes)?;
        let mut values = if activation.is_of_ids() {
            // Poison is no id.
            let ids: Vec<i32> = bytemuck::pod_collect_to_vec(&data);
            let id = |id: i32| if id < 0 { f64::NAN } else { f64::from(id) };
            ids.into_iter().map(id).collect()
        } else {
            widen(&floats(&data, elem))
        };
        let (spec, tokens) = (self.weights.spec(), plan.phase.tokens());
        let rest = values.split_off(activation_len(spec, activation, plan.splits, tokens));
        if output && rest.iter().any(|x| !x.is_nan()) {
            bail!("{label}: {activation:?}: written past its last row");
        }
        Ok(values)
    }
}
