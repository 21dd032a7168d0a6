"""Where datasets can be downloaded, each from one commit of a public repository.

The files there are not in the suite's form, so every source comes with the few lines that bring
it there. What comes out is checked against the content's checksum in
:data:`benchmarks.suite.datasets.REGISTRY`: a source that changed is refused, never used.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from knothole.errors import DamagedFile, InvalidInput, MissingExtra


@dataclass(frozen=True)
class Source:
    """Files of one commit of a repository, and how they become a table."""

    repository: str
    commit: str
    files: tuple[str, ...]
    prepare: Callable[[list[Path]], pd.DataFrame]

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the files."""
        base = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}"
        return tuple(f"{base}/{quote(file)}" for file in self.files)


def download(name: str) -> pd.DataFrame:
    """Download a dataset (once: files are kept in the user's cache) and bring it to form."""
    if name not in SOURCES:
        raise InvalidInput(
            f"dataset {name!r} has no public source in the suite's form. Set KNOTHOLE_DATA to the "
            f"folder that has its file, or pass path=."
        )
    try:
        import pooch
    except ImportError as error:
        raise MissingExtra(
            "downloads need pooch: pip install pooch, or set KNOTHOLE_DATA to a "
            "folder with the files."
        ) from error
    source = SOURCES[name]
    # No checksum of the raw file: the prepared table has one, which says more.
    try:
        paths = [Path(pooch.retrieve(url, known_hash=None)) for url in source.urls]
    except OSError as error:  # what requests raises are such, with a page of text
        raise InvalidInput(
            f"dataset {name!r} could not be downloaded from github.com/{source.repository} "
            f"({type(error).__name__}). Try again with a network, or set KNOTHOLE_DATA to a folder "
            f"that has its file."
        ) from error
    return source.prepare(paths)


# --- into the suite's form -----------------------------------------------------------------------


def rows(path: Path, names: str, number: str, separator: str = ",") -> pd.DataFrame:
    """Lines of a text file as a table, types by what they hold, "?" a missing value.

    ``names`` are those of the columns, with commas between. Some files have a header and some do
    not: a first line without a number in the column ``number`` is one. Comments (%, |), ARFF
    declarations (@) and empty lines are left out.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    fields = [
        [field.strip() for field in line.split(separator)]
        for line in lines
        if line and line[0] not in "%@|"
    ]
    columns = names.split(",")
    if any(len(line) != len(columns) for line in fields):
        raise DamagedFile(f"{path.name!r} should have {len(columns)} fields in every line.")
    frame = pd.DataFrame(fields, columns=columns)
    if pd.to_numeric(frame[number].iloc[:1], errors="coerce").isna().all():
        frame = frame.iloc[1:]
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)), na_values="?")


def _numbered(prefix: str, count: int) -> str:
    return ",".join([*(f"{prefix}{k}" for k in range(1, count + 1)), "target"])


def _member(path: Path, name: str) -> pd.DataFrame:
    """A CSV file in a compressed archive."""
    with tarfile.open(path) as archive:
        found = [member for member in archive.getnames() if member.rpartition("/")[2] == name]
        file = archive.extractfile(found[0]) if found else None
        if file is None:
            raise DamagedFile(f"{path.name!r} should contain the file {name!r}; it does not.")
        return pd.read_csv(file)


def _insurance(paths: list[Path]) -> pd.DataFrame:
    return pd.read_csv(paths[0])


def _concrete(paths: list[Path]) -> pd.DataFrame:
    return pd.read_csv(paths[0]).rename(columns={"strength": "target"})


def _abalone(paths: list[Path]) -> pd.DataFrame:
    names = (
        "Sex,Length,Diameter,Height,Whole weight,Shucked weight,Viscera weight,Shell weight,target"
    )
    return rows(paths[0], names, "target")


def _wine_quality(paths: list[Path]) -> pd.DataFrame:
    names = (
        "fixed_acidity,volatile_acidity,citric_acid,residual_sugar,chlorides,"
        "free_sulfur_dioxide,total_sulfur_dioxide,density,ph,sulphates,alcohol,"
        "target"
    )
    parts = {
        colour: rows(path, names, "target")
        for colour, path in zip(("red", "white"), paths, strict=True)
    }
    together = pd.concat(parts.values(), ignore_index=True)
    together.insert(0, "colour", np.repeat(list(parts), [len(part) for part in parts.values()]))
    return together


def _bike_sharing_hour(paths: list[Path]) -> pd.DataFrame:
    leaks = ["instant", "dteday", "casual", "registered"]
    return pd.read_csv(paths[0]).drop(columns=leaks).rename(columns={"cnt": "target"})


def _california_housing(paths: list[Path]) -> pd.DataFrame:
    housing = _member(paths[0], "housing.csv")
    return housing.assign(target=housing.pop("median_house_value"))


def _delta_ailerons(paths: list[Path]) -> pd.DataFrame:
    names = "RollRate,PitchRate,currPitch,currRoll,diffRollRate,target"
    return rows(paths[0], names, "target")


def _kin8nm(paths: list[Path]) -> pd.DataFrame:
    return rows(paths[0], _numbered("theta", 8), "target")


def _adult(paths: list[Path]) -> pd.DataFrame:
    names = (
        "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,"
        "race,sex,capital-gain,capital-loss,hours-per-week,native-country,"
        "target"
    )
    parts = [rows(path, names, "age") for path in paths]
    together = pd.concat(parts, ignore_index=True)
    return together.assign(target=together["target"].str.rstrip("."))


def _titanic(paths: list[Path]) -> pd.DataFrame:
    passengers = _member(paths[0], "train.csv")
    kept = passengers[["Pclass", "Sex", "Age", "SibSp", "Parch", "Fare", "Embarked"]]
    return kept.assign(Deck=passengers["Cabin"].str[0], target=passengers["Survived"])


def _heart_hungarian(paths: list[Path]) -> pd.DataFrame:
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"
    patients = rows(paths[0], names, "age", separator=";")
    return patients.assign(target=(patients["target"] > 0).astype(np.int64))


def _hypothyroid(paths: list[Path]) -> pd.DataFrame:
    names = (
        "age,sex,on thyroxine,query on thyroxine,on antithyroid medication,sick,pregnant,"
        "thyroid surgery,I131 treatment,query hypothyroid,query hyperthyroid,lithium,goitre,"
        "tumor,hypopituitary,psych,TSH measured,TSH,T3 measured,T3,TT4 measured,TT4,"
        "T4U measured,T4U,FTI measured,FTI,TBG measured,TBG,referral source,"
        "target"
    )
    return rows(paths[0], names, "age").drop(columns="TBG")  # never measured


def _credit_approval(paths: list[Path]) -> pd.DataFrame:
    table = rows(paths[0], _numbered("A", 15), "A3")
    return table.astype(dict.fromkeys(["A2", "A3", "A8", "A11", "A14", "A15"], np.float64))


_LANTZ = "stedy/Machine-Learning-with-R-datasets"
_BROWNLEE = "jbrownlee/Datasets"
_WINE = (_BROWNLEE, "91d19aca5be094c329211e0ce0912c607d6eb114")
_BIKES = ("zdvi/BikeSharing", "703dd0fbc7f59c8dcd547250c402ed19ee64f391")
_HEART = ("rogerdiniz/Python_and_data_science", "e80f142e94efc37a61f5e1e0c5fb44e267d23c7e")
_GERON = ("ageron/data", "d3caa456a6abc23c3090887c0c27172046f17a90")
_MC2 = ("UCLA-StarAI/mc2", "9b2da0cd583c42abd1ee538eeb254f30822f9c27")
_ARFF = ("renatopp/arff-datasets", "c59f172882592bb58982cc54d2d3c8a2b57e9b73")

#: Datasets that can be downloaded. Not among them: energy_heating (published as a spreadsheet) and
#: pima_diabetes (no commit known to hold it).
SOURCES: Mapping[str, Source] = {
    "insurance": Source(
        _LANTZ, "9a8371e95098f3048c5540646b9fb96c7571b110", ("insurance.csv",), _insurance
    ),
    "concrete": Source(
        _LANTZ, "72e6b6cc91bc2bb08eb6f99f52c033677cb70c1a", ("concrete.csv",), _concrete
    ),
    "abalone": Source(
        _BROWNLEE, "a8229c90a131a53c58be9027e047e6a74f11a264", ("abalone.csv",), _abalone
    ),
    "wine_quality": Source(*_WINE, ("winequality-red.csv", "winequality-white.csv"), _wine_quality),
    "bike_sharing_hour": Source(*_BIKES, ("hour.csv",), _bike_sharing_hour),
    "california_housing": Source(*_GERON, ("housing/housing.tgz",), _california_housing),
    "titanic": Source(*_GERON, ("titanic/titanic.tgz",), _titanic),
    "delta_ailerons": Source(*_MC2, ("data/delta-ailerons/delta_ailerons.data",), _delta_ailerons),
    "kin8nm": Source(*_MC2, ("data/kinematics/kin8nm.data",), _kin8nm),
    "adult": Source(*_MC2, ("data/adult/adult.data", "data/adult/adult.test"), _adult),
    "heart_hungarian": Source(*_HEART, ("processed.hungarian.data",), _heart_hungarian),
    "hypothyroid": Source(*_ARFF, ("classification/hypothyroid.arff",), _hypothyroid),
    "credit_approval": Source(*_ARFF, ("classification/credit.a.arff",), _credit_approval),
}
