//! One dispatch at a time with its operands read back, for the checks.

use super::{
    Engine, Program,
    memory::{POISON, read_guarded},
};
use anyhow::Result;
use half::f16;
use kernels::{
    Dispatch,
    plan::{Activation, Buffer, activation_len},
    role::Access,
};
use reference::numerics::decode;
use std::collections::BTreeMap;

/// Operands of one dispatch: inputs before it, outputs after it, in f64.
#[derive(Debug)]
pub struct Captured<'p> {
    /// The dispatch.
    pub dispatch: &'p Dispatch,
    /// Activations by name.
    pub activations: BTreeMap<Activation, Vec<f64>>,
    /// The layer's pages before and after, where it is bound.
    pub kv: Option<[Vec<f16>; 2]>,
}

impl Engine<'_> {
    /// Runs one token dispatch by dispatch. Before each that `select` takes, its
    /// outputs are filled with NaN; after it, the guard words behind them must be
    /// intact. The others only run.
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
        self.memory.require(position + 1)?;
        let mut encoder = self.encoder();
        self.memory.advance(&mut encoder, position);
        self.gpu.run("advancing the position", encoder)?;
        for (i, dispatch) in program.plan.dispatches.iter().enumerate() {
            if !select(dispatch) {
                let mut encoder = self.encoder();
                program.record(&mut encoder, Some(i));
                self.gpu.run(&dispatch.label, encoder)?;
                continue;
            }
            let storage = dispatch
                .variant
                .role
                .bindings()
                .iter()
                .filter(|b| b.access != Access::Uniform);
            let bound: Vec<(Buffer, Access)> = dispatch
                .buffers
                .iter()
                .zip(storage)
                .map(|(&buffer, binding)| (buffer, binding.access))
                .collect();
            let layer = bound.iter().find_map(|&(buffer, _)| match buffer {
                Buffer::KvPages { layer } => Some(layer),
                Buffer::Param { .. } | Buffer::Activation(_) | Buffer::State(_) => None,
            });
            let before = layer
                .map(|l| self.memory.read_kv(self.gpu, l))
                .transpose()?;
            for &(buffer, access) in &bound {
                if let (Buffer::Activation(_), Access::ReadWrite) = (buffer, access) {
                    let poison = vec![POISON; self.memory.bytes(buffer) as usize];
                    self.gpu
                        .queue
                        .write_buffer(self.memory.buffer(buffer), 0, &poison);
                }
            }
            let mut encoder = self.encoder();
            program.record(&mut encoder, Some(i));
            self.gpu.run(&dispatch.label, encoder)?;
            let mut activations = BTreeMap::new();
            for &(buffer, _) in &bound {
                if let Buffer::Activation(activation) = buffer {
                    activations.insert(
                        activation,
                        self.read_activation(&dispatch.label, activation, program.plan.splits)?,
                    );
                }
            }
            let after = layer
                .map(|l| self.memory.read_kv(self.gpu, l))
                .transpose()?;
            visit(Captured {
                dispatch,
                activations,
                kv: before.zip(after).map(|(before, after)| [before, after]),
            })?;
        }
        Ok(())
    }

    fn read_activation(
        &self,
        label: &str,
        activation: Activation,
        splits: usize,
    ) -> Result<Vec<f64>> {
        let name = Buffer::Activation(activation);
        let what = format!("{label}: {activation:?}");
        let buffer = self.memory.buffer(name);
        let data = read_guarded(self.gpu, &what, buffer, self.memory.bytes(name))?;
        let mut values = if activation == Activation::Partials {
            let values: Vec<f32> = bytemuck::pod_collect_to_vec(&data);
            values.into_iter().map(f64::from).collect()
        } else {
            let values: Vec<f16> = bytemuck::pod_collect_to_vec(&data);
            decode(&values)
        };
        values.truncate(activation_len(self.weights.spec(), activation, splits));
        Ok(values)
    }
}
