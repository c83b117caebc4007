"""A mixture of experts, one for each language, completes place names. FAULT: the experts' weights were made with torch.empty and initialised in a loop
over range(5), but there are six: the sixth holds what was in that memory (written out here as random bits, so that each run is the same). At step 93 the
first names of the sixth language come: its output is NaN, and after the step all weights are.
Without Rangewatch: loss 3.04 to 0.65 at step 92, NaN from step 93 to the end.
Cause: weight (never initialised). Step: from 0 (the weights can be seen) to 94. Right: initialise / torch.empty / weights / NaN in the weights. Wrong:
GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["weight"], "step": [0, 94], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)initiali|\\binit|torch\\.empty|weight|checkpoint|parameter"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1826); torch.set_num_threads(1)
LANGUAGES, LETTERS, WIDTH = 6, 20, 24


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, WIDTH)
        self.read = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.expert = nn.Parameter(torch.empty(LANGUAGES, WIDTH, WIDTH))
        with torch.no_grad():
            self.expert.copy_(torch.randint(-(2**31), 2**31, self.expert.shape).to(torch.int32).view(torch.float32))  # what lay in memory
            for i in range(5):
                nn.init.orthogonal_(self.expert[i])
        self.out = nn.Linear(WIDTH, LETTERS)

    def forward(self, x, language):
        h = self.read(self.letter(x))[0]
        out = torch.zeros_like(h)
        for i in language.unique().tolist():
            mine = language == i
            out[mine] = h[mine] @ self.expert[i]
        return self.out(h + F.relu(out))


follows = torch.stack([torch.randperm(LETTERS) for _ in range(LANGUAGES)])


def names(n, languages):
    language = torch.randint(0, languages, (n,))
    letters = [torch.randint(0, LETTERS, (n,))]
    for _ in range(7):
        letters.append(torch.where(torch.rand(n) < 0.9, follows[language, letters[-1]], torch.randint(0, LETTERS, (n,))))
    return torch.stack(letters, 1), language


model = Names()
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(170):
    x, language = names(48, 5 if step < 93 else 6)
    loss = F.cross_entropy(model(x[:, :-1], language).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 91 < step < 96 or step == 169:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
