//! The flag table, its values, and how choices give way.

use super::*;

const CPU: Features = Features {
    cpu: true,
    ..Features::PUBLISHED
};

fn choices(texts: &[&str]) -> Choices {
    let mut choices = Choices::new();
    for text in texts {
        parse_choice(text, &mut choices).expect("a valid choice");
    }
    choices
}

#[test]
fn the_table_is_unique_documented_and_symmetric() {
    for (i, flag) in FLAGS.iter().enumerate() {
        assert!(!flag.doc.is_empty(), "{} is documented", flag.name);
        assert!(
            FLAGS[..i].iter().all(|f| f.name != flag.name),
            "{} stands once",
            flag.name
        );
        assert!(
            !SETTINGS.contains(&flag.name),
            "{} is no setting",
            flag.name
        );
        for other in flag.needs.iter().chain(&flag.follows) {
            let earlier = FLAGS[..i].iter().any(|f| f.name == *other);
            assert!(earlier, "{other} stands in front of {}", flag.name);
        }
        for other in flag.excludes {
            let other = Flag::find(other).expect("an excluded flag exists");
            assert!(
                other.excludes.contains(&flag.name),
                "{} and {} exclude each other",
                flag.name,
                other.name
            );
        }
    }
}

#[test]
fn arms_are_off_against_default_or_first_on() {
    let splitk = Flag::find("splitk").expect("a flag");
    assert_eq!(splitk.arms(&CPU), [Value::Off, Value::Count(8)], "default");
    let elem = Flag::find("elem").expect("a flag").arms(&CPU);
    assert_eq!(elem.map(|v| v.to_string()), ["f16", "f32"], "names");
    let vec4 = Flag::find("vec4").expect("a flag");
    assert_eq!(vec4.arms(&CPU), [Value::Off, Value::On], "first on value");
}

#[test]
fn a_default_gives_way_and_says_so() {
    let settings = Settings::resolve(&CPU, &choices(&["vec4=1"])).expect("no conflict");
    assert_eq!(settings.get("rowwise"), Value::Off, "gave way");
    assert_eq!(
        settings.notes,
        ["rowwise is off: vec4 excludes it"],
        "said so"
    );
}

#[test]
fn a_family_follows_its_flag_and_a_choice_without_its_need_is_an_error() {
    let family = [
        "sgqkv", "sgffn", "sgattn", "sgargmax", "sggdn", "sgmoe", "matmul", "vec4qkv",
    ];
    let on = |features: &Features, texts: &[&str]| {
        let settings = Settings::resolve(features, &choices(texts)).expect("no conflict");
        family.map(|name| settings.get(name).is_on())
    };
    let gpu = Features::PUBLISHED;
    assert_eq!(on(&gpu, &[]), [true; 8], "with subgroups");
    let without = Features {
        subgroup_size: None,
        ..gpu
    };
    assert_eq!(on(&without, &[]), [false; 8], "without subgroups");
    assert_eq!(on(&CPU, &[]), [false; 8], "a CPU");
    assert_eq!(on(&CPU, &["sg"]), [true; 8], "chosen");
    assert_eq!(on(&gpu, &["sg=0"]), [false; 8], "switched off");
    assert_eq!(on(&gpu, &["rowwise"]), [false; 8], "excluded");
    let [_, ffn, _, _, _, _, _, wide] = on(&gpu, &["sgqkv=0"]);
    assert_eq!([ffn, wide], [true, false], "one role");
    let scalar = Flag::find("matmul").expect("a flag").off();
    let settings = Settings::resolve(&gpu, &choices(&["sg=0"])).expect("no conflict");
    assert_eq!(settings.get("matmul"), scalar, "matmul");
    for (features, texts, needs) in [
        (&gpu, &["sg=0", "sgffn"][..], "sg is off; it needs sg=1"),
        (&gpu, &["sg=0", "matmul=tiled8"], "sg is off; it needs sg=1"),
        (&gpu, &["rowwise", "sgargmax"], "sg is off; it needs sg=1"),
        (
            &gpu,
            &["sgqkv=0", "vec4qkv"],
            "sgqkv is off; it needs sgqkv=1",
        ),
        (&CPU, &["vec4attn"], "sgattn is off; it needs sg=1"),
        (
            &CPU,
            &["dp4arows=32"],
            "dp4a is off; it needs dp4a=1 and sg=1",
        ),
        (
            &gpu,
            &["chunk=0", "gemm"],
            "chunk is off; it needs chunk=64",
        ),
        (
            &CPU,
            &["rowwise=0", "texture"],
            "rowwise is off; it needs rowwise=1",
        ),
    ] {
        let error = Settings::resolve(features, &choices(texts)).expect_err("its need is off");
        let flag = texts.last().expect("a choice");
        let flag = flag.split('=').next().expect("a name");
        let expected = format!("flag {flag} does nothing while {needs}");
        assert_eq!(error.to_string(), expected, "{texts:?}");
    }
    let both = choices(&["qkvtile", "vec4qkv"]);
    let error = Settings::resolve(&gpu, &both).expect_err("shadowed");
    assert!(error.to_string().contains("exclude each other"), "{error}");
    let tile = Settings::resolve(&gpu, &choices(&["qkvtile"])).expect("a default gives way");
    assert_eq!(
        tile.notes,
        ["vec4qkv is off: qkvtile excludes it"],
        "said so"
    );
    let both = choices(&["vec4aff", "vec4affw"]);
    let error = Settings::resolve(&gpu, &both).expect_err("two loads");
    assert!(error.to_string().contains("exclude each other"), "{error}");
    let wider = Settings::resolve(&gpu, &choices(&["vec4affw"])).expect("a default gives way");
    assert_eq!(
        wider.notes,
        ["vec4aff is off: vec4affw excludes it"],
        "said so"
    );
}

#[test]
fn explicit_conflicts_and_bad_values_are_errors() {
    let both = choices(&["vec4", "rowwise"]);
    let error = Settings::resolve(&CPU, &both).expect_err("excluded");
    assert!(error.to_string().contains("exclude each other"), "{error}");
    let mut none = Choices::new();
    for (text, part) in [
        ("splitk=1", "expected 0, or 2 to 16"),
        ("splitkk", "did you mean `splitk`"),
        ("ctx=4", "is a setting"),
        ("vec4=maybe", "expected 0 or 1"),
        ("elem=f64", "expected one of f16, f32"),
        ("elem=0", "expected one of f16, f32"),
    ] {
        let error = parse_choice(text, &mut none).expect_err(text).to_string();
        assert!(error.contains(part), "{error}");
    }
}
