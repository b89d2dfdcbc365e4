//! A plain function of lane values, as an operation. The types of the function say in which registers the
//! operands lie and how they are read, so a table of instructions is a table of functions.

use super::context::{Context, Decoded};
use crate::exec::{Lane, Op, WARP, vectorised};

/// `d = f(a)`
pub(super) fn map1<A: Lane, D: Lane>(context: &mut Context, f: impl Fn(A) -> D + Send + Sync + 'static) -> Decoded {
    context.expect(2)?;
    let d = context.destination::<D>(0)?.slot;
    let a = context.source::<A>(1)?.slot;
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let mut values = [D::default(); WARP];
                for (d, a) in values.iter_mut().zip(A::read(registers, a)) {
                    *d = f(a);
                }
                D::write(registers, d, &values, lanes);
            },
        )
    }))))
}

/// `d = f(a, b)`
pub(super) fn map2<A: Lane, B: Lane, D: Lane>(
    context: &mut Context,
    f: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> Decoded {
    context.expect(3)?;
    let d = context.destination::<D>(0)?.slot;
    let (a, b) = (context.source::<A>(1)?.slot, context.source::<B>(2)?.slot);
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let mut values = [D::default(); WARP];
                for ((d, a), b) in values.iter_mut().zip(A::read(registers, a)).zip(B::read(registers, b)) {
                    *d = f(a, b);
                }
                D::write(registers, d, &values, lanes);
            },
        )
    }))))
}

/// `d = f(a, b, c)`
pub(super) fn map3<A: Lane, B: Lane, C: Lane, D: Lane>(
    context: &mut Context,
    f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> Decoded {
    context.expect(4)?;
    map3_of(context, f)
}

/// The same for instructions with more operands, which `f` holds itself.
pub(super) fn map3_of<A: Lane, B: Lane, C: Lane, D: Lane>(
    context: &mut Context,
    f: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> Decoded {
    let d = context.destination::<D>(0)?.slot;
    let (a, b, c) = (context.source::<A>(1)?.slot, context.source::<B>(2)?.slot, context.source::<C>(3)?.slot);
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let (a, b, c) = (A::read(registers, a), B::read(registers, b), C::read(registers, c));
                let mut values = [D::default(); WARP];
                for (((d, a), b), c) in values.iter_mut().zip(a).zip(b).zip(c) {
                    *d = f(a, b, c);
                }
                D::write(registers, d, &values, lanes);
            },
        )
    }))))
}

/// `d = f(a, b, c, e)`
pub(super) fn map4<A: Lane, B: Lane, C: Lane, E: Lane, D: Lane>(
    context: &mut Context,
    f: impl Fn(A, B, C, E) -> D + Send + Sync + 'static,
) -> Decoded {
    context.expect(5)?;
    let d = context.destination::<D>(0)?.slot;
    let (a, b) = (context.source::<A>(1)?.slot, context.source::<B>(2)?.slot);
    let (c, e) = (context.source::<C>(3)?.slot, context.source::<E>(4)?.slot);
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let (a, b) = (A::read(registers, a), B::read(registers, b));
                let (c, e) = (C::read(registers, c), E::read(registers, e));
                let mut values = [D::default(); WARP];
                for ((((d, a), b), c), e) in values.iter_mut().zip(a).zip(b).zip(c).zip(e) {
                    *d = f(a, b, c, e);
                }
                D::write(registers, d, &values, lanes);
            },
        )
    }))))
}
