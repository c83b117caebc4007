"""Link prediction in a knowledge graph (DistMult with a bilinear mixer), Adagrad. The entity table of a first training is grown by six rows for entities that will come.
FAULT at step 0, read first at step 90: the grown table is made by torch.empty and only the old rows are copied into it; no one initialises the new ones (torch fills empty memory with NaN here, deterministic mode). Facts with a new entity come from step 90 on.
Without Rangewatch: 144 NaN in the table from step 0 on; loss 2.13 to 0.28 at step 89, NaN from step 90 on (without the new entities 0.17 at the end).
Cause: weight (rows of `entities` without a value). Step: 0 (whoever looks at the weights) to 92. Right: initialise the new rows of the embedding. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["weight"], "step": [0, 92], "place": r"(.*\.)?entities(\.weight)?", "rank": None,
          "right": r"(?i)weight|row|embedding|initialis|table|load", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3705)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True
OLD, NEW, RELS, D = 80, 6, 5, 24


def grow(old: nn.Embedding, rows: int) -> nn.Embedding:
    grown = nn.Embedding.from_pretrained(torch.empty(old.num_embeddings + rows, old.embedding_dim), freeze=False)
    with torch.no_grad():
        grown.weight[: old.num_embeddings] = old.weight
    return grown


class Links(nn.Module):
    def __init__(self, entities):
        super().__init__()
        self.entities = entities
        self.relations = nn.Embedding(RELS, D)
        self.mixer = nn.Linear(D, D)

    def forward(self, head, rel, tails):
        h = self.mixer(self.entities(head)) * self.relations(rel)
        return torch.einsum("bd,bkd->bk", h, self.entities(tails))


def facts(n, entities):
    h, r = torch.randint(0, entities, (n,)), torch.randint(0, RELS, (n,))
    t = (h * 7 + r * 13 + 3) % OLD
    wrong = torch.randint(0, OLD, (n, 7))
    return h, r, torch.cat([t[:, None], wrong], 1)


first = nn.Embedding(OLD, D)
nn.init.normal_(first.weight, std=0.3)
links = Links(grow(first, NEW))
opt = torch.optim.Adagrad(links.parameters(), lr=0.08)
handle = rangewatch.attach(links, opt)
for step in range(200):
    h, r, t = facts(96, OLD if step < 90 else OLD + NEW)
    score = links(h, r, t)
    loss = F.cross_entropy(score, torch.zeros(96, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0 or 88 <= step <= 92:
        print("step", step, "loss", round(loss.item(), 4), "NaN in table", int(links.entities.weight.isnan().sum()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
